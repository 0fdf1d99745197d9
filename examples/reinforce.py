"""REINFORCE with a learned baseline (Williams, 1992): an algorithm of your own, trained by its Python path.

podium train reinforce:algorithm CartPole-v1 --total-steps 100_000
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.algorithms.algorithm import Algorithm, Fragments
from podium.core.config import AlgorithmConfig, Experiment
from podium.core.errors import ConfigError
from podium.core.specs import Box, EnvSpec
from podium.core.types import ActInput, Fragment
from podium.networks import network as networks
from podium.ops import distributions
from podium.ops.returns import lambda_returns


@dataclass(frozen=True)
class ReinforceConfig(AlgorithmConfig):
    """REINFORCE with a baseline. Every field here is one that `--set algorithm.` takes."""

    HYPER = ("learning_rate", "gamma", "entropy_coef")

    learning_rate: float = 5e-3
    """Step size of Adam."""
    fragment_length: int = 32
    """Steps of each environment between two updates (T)."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    params: Any
    optimizer: optax.OptState
    hyper: dict[str, jax.Array]


def algorithm(config: ReinforceConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """REINFORCE for one environment spec."""
    if isinstance(spec.action, Box):
        raise ConfigError(f"env.id = {experiment.env.id!r}: this REINFORCE has discrete actions only")
    network = networks.make(experiment.network, spec, distributions.num_outputs(spec.action))
    adam = optax.scale_by_adam()

    def init(key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        params = network.init(key)
        return TrainState(params, adam.init(params), {name: jnp.float32(value) for name, value in hyper.items()})

    def act(params: Any, memory: Any, inputs: ActInput, greedy: bool) -> tuple:
        obs = jax.tree.map(lambda x: x[None], inputs.obs)  # networks take [T, B, ...]
        outputs, _, memory = network.apply(params, memory, obs, inputs.first[None])
        policy = distributions.make(spec.action, outputs[0], mask=inputs.mask)
        return policy.mode() if greedy else policy.sample(inputs.key), {}, memory

    def loss(params: Any, hyper: dict[str, jax.Array], batch: Fragment, count: jax.Array) -> tuple:
        outputs, value, _ = network.apply(params, batch.memory, batch.obs, batch.first)
        mask = None if batch.mask is None else batch.mask[:-1]
        policy = distributions.make(spec.action, outputs[:-1], mask=mask)
        baseline = jax.lax.stop_gradient(value)
        returns = lambda_returns(batch.reward, baseline, batch.terminated, batch.truncated, hyper["gamma"], 1.0)
        advantage = returns - baseline[:-1]
        policy_loss = -policy.log_prob(batch.action) * advantage
        value_loss = 0.5 * (value[:-1] - returns) ** 2
        entropy = policy.entropy()
        # Reset rows are no steps of the task: `valid` takes them out of every mean.
        parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        means = {name: jnp.sum(jnp.where(batch.valid, part, 0.0)) / count for name, part in parts.items()}
        total = means["policy_loss"] + 0.5 * means["value_loss"] - hyper["entropy_coef"] * means["entropy"]
        return total, means | {"loss": total}

    def update(state: TrainState, batch: Fragment, key: jax.Array, axis: str | None = None) -> tuple:
        def add_up(x: Any) -> Any:  # over the devices that share the rows, if there are several
            return x if axis is None else jax.lax.psum(x, axis)

        count = jnp.maximum(add_up(jnp.sum(batch.valid)), 1)
        gradient, metrics = add_up(jax.grad(loss, has_aux=True)(state.params, state.hyper, batch, count))
        step, optimizer = adam.update(gradient, state.optimizer)
        params = jax.tree.map(lambda p, s: p - state.hyper["learning_rate"] * s, state.params, step)
        return TrainState(params, optimizer, state.hyper), metrics, ()

    return Algorithm(
        experience=Fragments(config.fragment_length, config.gamma),
        init=init,
        params=lambda state: state.params,
        memory=lambda params, batch: network.memory(batch),
        act=act,
        update=update,
    )
