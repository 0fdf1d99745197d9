"""Evolution strategies (Salimans et al., 2017): individuals around a mean play an episode each, and it moves to the
better.

Reads top to bottom: state, an individual's parameters, act, update. Individuals are slices of a noise table, in
antithetic pairs; their returns are replaced by ranks; the mean follows the estimated gradient by Adam.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.algorithms import collectives
from podium.algorithms.algorithm import Algorithm, Individuals, Played
from podium.algorithms.collectives import add_up
from podium.algorithms.optimizers import ADAM
from podium.core.algorithm_configs import ESConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import Box, EnvSpec
from podium.core.types import ActInput, Tree
from podium.networks import network as networks
from podium.networks.network import Network
from podium.ops import distributions, random_keys, statistics
from podium.ops.noise_table import NoiseTable, weighted_sum
from podium.ops.ranks import centered_ranks


class Params(NamedTuple):
    """What actors need: the mean (or an individual's own parameters), how far individuals are from it, and the
    normaliser."""

    network: Tree
    sigma: jax.Array
    action_noise: jax.Array
    observations: statistics.RunningStatistics | None


class TrainState(NamedTuple):
    """All that a checkpoint must hold. The noise table is made of the seed again."""

    mean: Tree
    observations: statistics.RunningStatistics | None
    optimizer: optax.OptState
    hyper: dict[str, jax.Array]


IDLE = (
    "algorithm.normalize_observations does nothing here: evolution strategies normalise floats only (pixels are "
    "divided by 255)"
)


def make(config: ESConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """ES for one environment spec."""
    network = networks.make(experiment.network, spec, distributions.num_outputs(spec.action))
    es = ES(config, spec, network)
    if config.noise_table <= es.size:
        raise ConfigError(
            f"algorithm.noise_table = {config.noise_table}: must be more than the policy's {es.size} parameters"
        )
    individuals = Individuals(
        population=config.population,
        episode_limit=config.episode_limit,
        size=es.size,
        table=NoiseTable(experiment.seed, config.noise_table),
        perturb=es.perturb,
        observes=es.observes,
    )
    return Algorithm(
        experience=individuals,
        init=es.init,
        params=es.params,
        memory=lambda params, batch: network.memory(batch),
        act=es.act,
        update=es.update,
        notes=(IDLE,) if config.normalize_observations and not es.observes else (),
    )


@dataclass(frozen=True, eq=False)
class ES:
    """The pure functions of the algorithm, for one environment spec."""

    config: ESConfig
    spec: EnvSpec
    network: Network

    @cached_property
    def shapes(self) -> Tree:
        """Of the parameters that acting needs: a value network apart is left out."""
        return jax.eval_shape(lambda: self.policy_part(self.network.init(jax.random.key(0))))

    @cached_property
    def size(self) -> int:
        """How many they are."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.shapes))

    @property
    def observes(self) -> bool:
        """Whether there is something to normalise, and it is wanted."""
        floats = [array for array in jax.tree.leaves(self.spec.observation) if array.dtype.startswith("float")]
        return self.config.normalize_observations and bool(floats)

    def policy_part(self, network: Tree) -> Tree:
        return {"policy": network["policy"]} if self.network.separate else network

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        mean = self.policy_part(self.network.init(key))
        return TrainState(
            mean=mean,
            observations=statistics.init(spec.observation) if self.observes else None,
            optimizer=ADAM.init(mean),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def params(self, state: TrainState) -> Params:
        return Params(state.mean, state.hyper["sigma"], state.hyper["action_noise"], state.observations)

    def unflatten(self, flat: Any) -> Tree:
        """Numbers [size], of NumPy or JAX, in the places of the parameters."""
        leaves, structure = jax.tree.flatten(self.shapes)
        parts, end = [], 0
        for leaf in leaves:
            begin, end = end, end + math.prod(leaf.shape)
            parts.append(flat[begin:end].reshape(leaf.shape))
        return structure.unflatten(parts)

    def perturb(self, params: Params, noise: Any, sign: Any) -> Params:
        """An individual's parameters: the mean, and sigma times its noise to one side or the other."""
        step = sign * params.sigma
        network = jax.tree.map(lambda mean, epsilon: mean + step * epsilon, params.network, self.unflatten(noise))
        return params._replace(network=network)

    def act(self, params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        obs = inputs.obs if params.observations is None else statistics.normalize(params.observations, inputs.obs)
        network = params.network
        if self.network.separate:  # acting does not look at values: XLA drops the network that is missing here
            network = {**network, "value": _zeros(jax.eval_shape(self.network.init, jax.random.key(0))["value"])}
        obs = jax.tree.map(lambda x: x[None], obs)
        outputs, _, memory = self.network.apply(network, memory, obs, inputs.first[None])
        spec = self.spec.action
        width = jnp.zeros(spec.size) if isinstance(spec, Box) else None
        action = distributions.make(spec, outputs[0], width, inputs.mask).mode()
        if isinstance(spec, Box) and not greedy:
            scale = (params.action_noise * inputs.exploration).reshape(-1, *(1,) * len(spec.shape))
            action = action + scale * random_keys.normal(inputs.key, spec.shape)
        return action, {}, memory

    def update(self, state: TrainState, batch: Played, key: jax.Array, axis: str | None = None) -> tuple:
        everybody = batch.returns, batch.valid
        if axis is not None:
            everybody = collectives.gather(everybody, axis)
        shaped = centered_ranks(*everybody)
        if axis is not None:
            begin = jax.lax.axis_index(axis) * len(batch.returns)
            shaped = jax.lax.dynamic_slice(shaped, (begin,), batch.returns.shape)
        gradient = self.unflatten(self.gradient(state, batch, shaped, axis))
        step, optimizer = ADAM.update(gradient, state.optimizer)
        rate, decay = state.hyper["learning_rate"], state.hyper["weight_decay"]
        mean = jax.tree.map(lambda mean, s: mean + rate * (s - decay * mean), state.mean, step)
        observations = state.observations
        if batch.seen is not None and observations is not None:
            observations = statistics.update(observations, batch.seen.obs, batch.seen.weight, axis)
        metrics = _describe(*everybody) | {
            "gradient_norm": optax.tree.norm(gradient),
            "params_norm": optax.tree.norm(mean),
        }
        return TrainState(mean, observations, optimizer, state.hyper), metrics, ()

    def gradient(self, state: TrainState, batch: Played, fitness: jax.Array, axis: str | None) -> jax.Array:
        """The gradient of the expected fitness over individuals, at the mean: sum_i fitness_i sign_i noise_i / (n
        sigma).

        A device adds up its own individuals; what is as long as the parameters is met over once.
        """
        weight = jnp.where(batch.valid, fitness * batch.sign, 0.0)
        total, count = weighted_sum(batch.table, batch.index, weight, self.size), jnp.sum(batch.valid)
        total, count = add_up((total, count), axis)
        return total / (jnp.maximum(count, 1) * state.hyper["sigma"])


def _describe(returns: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
    """Figures of the population's returns. One that is not finite has the last rank, and is counted here only."""
    finite = valid & jnp.isfinite(returns)
    count = jnp.maximum(jnp.sum(finite), 1)
    mean = jnp.sum(jnp.where(finite, returns, 0.0)) / count
    deviation = jnp.sqrt(jnp.sum(jnp.where(finite, (returns - mean) ** 2, 0.0)) / count)
    return {
        "population_mean": mean,
        "population_std": deviation,
        "population_max": jnp.where(finite.any(), jnp.max(jnp.where(finite, returns, -jnp.inf)), 0.0),
        "individuals": jnp.sum(valid),
        "individuals_not_finite": jnp.sum(valid & ~finite),
    }


def _zeros(shapes: Tree) -> Tree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
