"""Values of actions: encoder, hidden layers, an optional recurrent core, and a plain or a dueling head."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Discrete, EnvSpec
from podium.core.types import Tree
from podium.networks import network as networks
from podium.networks.actor_critic import MLP, Encoder, Tower
from podium.networks.network import find_images, zeros_like_spec
from podium.networks.recurrent import CORES


class QNetwork(NamedTuple):
    """Q-values as pure functions over [T, B] observations.

    params = network.init(key)
    q, memory = network.apply(params, network.memory(B), obs, first)      # q: [T, B, n]

    `first` marks observations that start an episode: memory of the episode before ends there.
    """

    init: Callable[[jax.Array], Tree]
    memory: Callable[[int], Tree]
    apply: Callable[..., tuple[jax.Array, Tree]]

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.memory(1))))


def make(config: NetworkConfig, spec: EnvSpec, dueling: bool) -> QNetwork:
    """The network that `config` describes. One of the user's own (`network.factory`) gives n outputs and a value:
    they are the advantages and the state's value of a dueling head, or the outputs are Q-values.
    """
    assert isinstance(spec.action, Discrete)
    if config.value_hidden is not None:
        raise ConfigError(
            f"network.value_hidden = {list(config.value_hidden)}: Q-values come of one network; use hidden"
        )
    if config.factory is not None:
        return _from_factory(config, spec, spec.action.n, dueling)
    module = QValues(config, find_images(spec.observation), spec.action.n, dueling)

    def memory(batch: int) -> Tree:
        return CORES[config.memory].start(config.memory_size, batch) if config.memory != "none" else ()

    def init(key: jax.Array) -> Tree:
        obs = zeros_like_spec(spec.observation, (1, 1))
        return module.init(key, memory(1), obs, jnp.ones((1, 1), bool))["params"]

    def apply(params: Tree, memory: Tree, obs: Tree, first: jax.Array) -> tuple[jax.Array, Tree]:
        return module.apply({"params": params}, memory, obs, first)  # pyright: ignore[reportReturnType]

    return QNetwork(init, memory, apply)


class QValues(nn.Module):
    """Q-values of observations [T, B, ...]. The last hidden layer comes after the core, if there is one; a dueling
    head has two of them, one for the state's value and one for the actions' advantages.
    """

    config: NetworkConfig
    images: Sequence[bool]
    num_actions: int
    dueling: bool

    @nn.compact
    def __call__(self, memory: Tree, obs: Tree, first: jax.Array) -> tuple[jax.Array, Tree]:
        features = Encoder(self.images, self.config.vision, name="encoder")(obs).reshape(first.size, -1).T
        shared, last, activation = self.config.hidden[:-1], self.config.hidden[-1:], self.config.activation
        features = MLP(shared, activation, name="torso")(features)
        if self.config.memory != "none":
            core = CORES[self.config.memory](self.config.memory_size, name="core")
            memory, features = core(memory, features.T.reshape(*first.shape, -1), first)
            features = features.reshape(first.size, -1).T
        q = Tower(last, activation, self.num_actions, 1.0, name="advantages" if self.dueling else "q")(features).T
        if self.dueling:
            q = duel(Tower(last, activation, 1, 1.0, name="value")(features)[0], q)
        return q.reshape(*first.shape, -1), memory


def duel(value: jax.Array, advantages: jax.Array) -> jax.Array:
    """Q-values [..., n] of a state's value [...] and advantages [..., n], of which only differences count
    (Wang et al., 2016).

    >>> duel(jnp.float32(10.0), jnp.array([0.0, 2.0, 4.0])).tolist()
    [8.0, 10.0, 12.0]
    """
    return value[..., None] + advantages - jnp.mean(advantages, axis=-1, keepdims=True)


def _from_factory(config: NetworkConfig, spec: EnvSpec, num_actions: int, dueling: bool) -> QNetwork:
    network = networks.make(config, spec, num_actions)

    def apply(params: Tree, memory: Tree, obs: Tree, first: jax.Array) -> tuple[jax.Array, Tree]:
        outputs, value, memory = network.apply(params, memory, obs, first)
        return duel(value, outputs) if dueling else outputs, memory

    return QNetwork(network.init, network.memory, apply)
