"""The contract of a network, and the choice of one: ours by configuration, or the user's by path."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.specs import Array, EnvSpec
from podium.core.types import Tree


class Network(NamedTuple):
    """An actor-critic as pure functions over [T, B] observations.

    params = network.init(key)
    outputs, value, memory = network.apply(params, network.memory(B), obs, first)

    `first` marks observations that start an episode: memory of the episode before ends there.
    `outputs` [T, B, n] parameterise the action distribution, `value` is [T, B]. XLA drops whichever
    the caller does not use. A `network.factory` returns one of these.

    `separate` promises that params are {"policy": ..., "value": ...}, that `outputs` need the first only and
    `value` the second: so policy and value may be trained at the same time, each on a device of its own.
    """

    init: Callable[[jax.Array], Tree]
    memory: Callable[[int], Tree]
    apply: Callable[..., tuple[jax.Array, jax.Array, Tree]]
    separate: bool = False


def make(config: NetworkConfig, spec: EnvSpec, num_outputs: int) -> Network:
    """The network that `config` describes, for `num_outputs` policy outputs."""
    if config.factory is None:
        from podium.networks import actor_critic

        return actor_critic.make(config, spec, num_outputs)
    network = load_path(config.factory, "network.factory")(config, spec, num_outputs)
    if not isinstance(network, Network):
        raise ConfigError(
            f"network.factory = {config.factory!r}: must return a podium.networks.network.Network, "
            f"not {type(network).__name__}"
        )
    if network.separate and set(names := jax.eval_shape(network.init, jax.random.key(0))) != {"policy", "value"}:
        raise ConfigError(
            f"network.factory = {config.factory!r}: parameters of a separate network must be a dict of "
            f"'policy' and 'value', not of {sorted(names)}"
        )
    return network


def zeros_like_spec(observation: Tree, leading: tuple[int, ...]) -> Tree:
    """Zero observations of shape [*leading, ...], to initialise or trace with."""
    if isinstance(observation, Array):
        return jnp.zeros((*leading, *observation.shape), observation.dtype)
    return {name: zeros_like_spec(part, leading) for name, part in observation.items()}


def find_images(observation: Tree) -> tuple[bool, ...]:
    """Which leaves of observations of this spec are pixels, in the order of `jax.tree.leaves`."""
    return tuple(array.is_image for array in jax.tree.leaves(observation))
