"""Networks for continuous control: a policy tower, and an ensemble of critics of observations and actions.

    policy = make_policy(config, spec, num_outputs)
    outputs = policy.apply(policy.init(key), obs)              # [num_outputs, B]
    critics = make_critics(config, spec, towers=2)
    values = critics.apply(critics.init(key), obs, action)     # [towers, B] of actions [k, B]

Outputs and actions have their features first, as all layers have: then whatever is computed of them, number by
number, runs along the batch. Critics share nothing but an encoder of images; each layer of all of them is one
batched product.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Box, EnvSpec
from podium.core.types import Tree
from podium.networks import network as networks
from podium.networks.actor_critic import ACTIVATIONS, Encoder, Tower
from podium.networks.network import find_images, zeros_like_spec
from podium.networks.orthogonal import orthogonal


class PolicyNetwork(NamedTuple):
    """A policy's outputs [n, B] of observations [B, ...], as pure functions."""

    init: Callable[[jax.Array], Tree]
    apply: Callable[[Tree, Tree], Any]


class Critics(NamedTuple):
    """Values of observations [B, ...] and actions [k, B], as pure functions: [towers, B], or the first one's [B]."""

    init: Callable[[jax.Array], Tree]
    apply: Callable[[Tree, Tree, jax.Array], Any]
    apply_first: Callable[[Tree, Tree, jax.Array], Any]


class Layers(nn.Module):
    """One layer of each tower: [in, N], which all see, or [towers, in, N], to [towers, out, N].

    Features first, as `actor_critic.Dense` is, and for the same reason.
    """

    towers: int
    features: int
    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.shape[-2]
        kernel = self.param("kernel", _orthogonal_each(self.scale), (self.towers, self.features, inputs))
        bias = self.param("bias", nn.initializers.zeros, (self.towers, self.features, 1))
        if x.ndim == 2:  # one product of all towers' rows
            return (kernel.reshape(-1, inputs) @ x).reshape(self.towers, self.features, -1) + bias
        return kernel @ x + bias


class Ensemble(nn.Module):
    """Values [towers, N] of the same inputs [in, N] by so many towers."""

    towers: int
    hidden: Sequence[int]
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for number, width in enumerate(self.hidden):
            x = ACTIVATIONS[self.activation](Layers(self.towers, width, 2**0.5, name=f"hidden_{number}")(x))
        return Layers(self.towers, 1, 1.0, name="head")(x).reshape(self.towers, -1)


class PolicyTower(nn.Module):
    """Outputs [n, B] of observations [B, ...]."""

    config: NetworkConfig
    images: Sequence[bool]
    num_outputs: int

    @nn.compact
    def __call__(self, obs: Tree) -> jax.Array:
        # Small outputs at first: an action near the middle of its range, wherever the agent is.
        tower = Tower(self.config.hidden, self.config.activation, self.num_outputs, 0.01, name="tower")
        return tower(_encode(obs, self.images, self.config.vision))


class CriticTowers(nn.Module):
    """Values [towers, B] of observations [B, ...] and actions [k, B]."""

    config: NetworkConfig
    images: Sequence[bool]
    towers: int

    @nn.compact
    def __call__(self, obs: Tree, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([_encode(obs, self.images, self.config.vision), action])
        return Ensemble(self.towers, self.config.critic_hidden, self.config.activation, name="towers")(x)


def make_policy(config: NetworkConfig, spec: EnvSpec, num_outputs: int) -> PolicyNetwork:
    """A policy of its own parameters: ours, or the one in the user's `network.factory`, whose value is not used."""
    if config.memory != "none":
        raise ConfigError(f"network.memory = {config.memory!r}: policies with critics of actions have none; use none")
    if config.factory is not None:
        network = networks.make(config, spec, num_outputs)
        if jax.tree.leaves(jax.eval_shape(lambda: network.memory(1))):
            raise ConfigError(f"network.factory = {config.factory!r}: has memory, which cannot be trained here")

        def apply(params: Tree, obs: Tree) -> jax.Array:
            rows = jax.tree.leaves(obs)[0].shape[0]
            in_time = jax.tree.map(lambda x: x[None], obs)
            return network.apply(params, network.memory(rows), in_time, jnp.zeros((1, rows), bool))[0][0].T

        return PolicyNetwork(network.init, apply)
    module = PolicyTower(config, find_images(spec.observation), num_outputs)
    return PolicyNetwork(
        lambda key: module.init(key, zeros_like_spec(spec.observation, (1,)))["params"],
        lambda params, obs: module.apply({"params": params}, obs),
    )


def make_critics(config: NetworkConfig, spec: EnvSpec, towers: int) -> Critics:
    """Critics of the configured shape for actions of `spec`, flattened."""
    assert isinstance(spec.action, Box)
    images, size = find_images(spec.observation), spec.action.size
    module, alone = CriticTowers(config, images, towers), CriticTowers(config, images, 1)

    def apply_first(params: Tree, obs: Tree, action: jax.Array) -> Any:
        # The others' products are not computed: XLA would not leave them out of a batched one by itself.
        towers = jax.tree.map(lambda x: x[:1], params["towers"])
        values: Any = alone.apply({"params": params | {"towers": towers}}, obs, action)
        return values[0]

    return Critics(
        lambda key: module.init(key, zeros_like_spec(spec.observation, (1,)), jnp.zeros((size, 1)))["params"],
        lambda params, obs, action: module.apply({"params": params}, obs, action),
        apply_first,
    )


def _encode(obs: Tree, images: Sequence[bool], vision: str) -> jax.Array:
    """Features [n, B] of observations [B, ...]; to be called in a module's method, whose submodule the encoder is."""
    features = Encoder(images, vision, name="encoder")(jax.tree.map(lambda x: x[None], obs))
    return features.reshape(features.shape[1], -1).T


def _orthogonal_each(scale: float) -> Callable:
    """Of each tower by itself: [towers, out, in]."""
    init = orthogonal(scale)

    def init_each(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.vmap(lambda key: init(key, shape[1:], jnp.float32))(jax.random.split(key, shape[0]))

    return init_each
