"""The contract of a network, and the choice of one: ours by configuration, or the user's by path."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.specs import Array, EnvSpec
from podium.core.types import Tree
from podium.core.user_frames import refusing


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
    place = f"network.factory = {config.factory!r}"
    factory = load_path(config.factory, "network.factory")
    if not callable(factory):
        raise ConfigError(f"{place}: must be a function (config, spec, num_outputs) -> Network, is {factory!r}")
    with refusing(f"{place}: called with (config, spec, num_outputs), it"):
        network = factory(config, spec, num_outputs)
    if not isinstance(network, Network):
        raise ConfigError(f"{place}: must return a podium.networks.network.Network, not {type(network).__name__}")
    check_network(network, spec, num_outputs, place)
    return network


def check_network(network: Network, spec: EnvSpec, num_outputs: int, place: str) -> None:
    """Trace a user's network once; ConfigError where its functions do not give what `Network` says."""
    with refusing(f"{place}: its init"):
        params = jax.eval_shape(network.init, jax.random.key(0))
    if network.separate and (not isinstance(params, dict) or set(params) != {"policy", "value"}):
        names = f"of {sorted(params)}" if isinstance(params, dict) else type(params).__name__
        raise ConfigError(
            f"{place}: parameters of a separate network must be a dict of 'policy' and 'value', not {names}"
        )
    obs, first = zeros_like_spec(spec.observation, (2, 3)), jnp.zeros((2, 3), bool)
    with refusing(f"{place}: its memory"):
        memory = jax.eval_shape(lambda: network.memory(3))
    with refusing(f"{place}: its apply"):
        found = jax.eval_shape(network.apply, params, memory, obs, first)
    if not isinstance(found, tuple) or len(found) != 3:
        raise ConfigError(f"{place}: its apply must return (outputs, value, memory), not {type(found).__name__}")
    shapes = [getattr(part, "shape", type(part).__name__) for part in found[:2]]
    if shapes != [(2, 3, num_outputs), (2, 3)]:
        raise ConfigError(
            f"{place}: for observations [2, 3, ...], its apply must return outputs {(2, 3, num_outputs)} and a value"
            f" {(2, 3)}, not {shapes[0]} and {shapes[1]}"
        )
    if jax.tree.map(_form, found[2]) != jax.tree.map(_form, memory):
        raise ConfigError(f"{place}: its apply must return memory of the shapes that it was given")


def _form(leaf: Any) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


def zeros_like_spec(observation: Tree, leading: tuple[int, ...]) -> Tree:
    """Zero observations of shape [*leading, ...], to initialise or trace with."""
    if isinstance(observation, Array):
        return jnp.zeros((*leading, *observation.shape), observation.dtype)
    return {name: zeros_like_spec(part, leading) for name, part in observation.items()}


def find_images(observation: Tree) -> tuple[bool, ...]:
    """Which leaves of observations of this spec are pixels, in the order of `jax.tree.leaves`."""
    return tuple(array.is_image for array in jax.tree.leaves(observation))
