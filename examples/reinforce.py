"""REINFORCE with a learned baseline (Williams, 1992): an algorithm of your own, trained by its Python path.

podium train reinforce:algorithm CartPole-v1 --total-steps 100_000
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from podium.algorithms.algorithm import Algorithm, Fragments
from podium.core.algorithm_configs import AlgorithmConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import ActInput, Fragment, Tree
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


def algorithm(config: ReinforceConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """REINFORCE for one environment spec. Its training state is (params, Adam's moments, traced settings)."""
    network = networks.make(experiment.network, spec, distributions.num_outputs(spec.action, std_by_network=True))
    adam = optax.scale_by_adam()

    def init(key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> Tree:
        params = network.init(key)
        return params, adam.init(params), {name: jnp.float32(value) for name, value in hyper.items()}

    def act(params: Tree, memory: Tree, inputs: ActInput, greedy: bool) -> tuple:
        obs = jax.tree.map(lambda x: x[None], inputs.obs)  # networks take [T, B, ...]
        outputs, _, memory = network.apply(params, memory, obs, inputs.first[None])
        policy = distributions.make(spec.action, outputs[0], mask=inputs.mask)
        return policy.mode() if greedy else policy.sample(inputs.key), {}, memory

    def loss(params: Tree, hyper: dict[str, jax.Array], batch: Fragment, count: jax.Array) -> tuple:
        outputs, value, _ = network.apply(params, batch.memory, batch.obs, batch.first)
        policy = distributions.make(spec.action, outputs[:-1], mask=None if batch.mask is None else batch.mask[:-1])
        # Discounted rewards to the episode's end; the value stands for the rest where a time limit or T cuts it off.
        returns = lambda_returns(batch.reward, value, batch.terminated, batch.truncated, hyper["gamma"], lambda_=1.0)
        terms = {
            "policy_loss": -policy.log_prob(batch.action) * jax.lax.stop_gradient(returns - value[:-1]),
            "value_loss": 0.5 * (value[:-1] - jax.lax.stop_gradient(returns)) ** 2,
            "entropy": policy.entropy(),
        }
        # Reset rows are no steps of the task: `valid` takes them out of every mean.
        means = {name: jnp.sum(jnp.where(batch.valid, term, 0.0)) / count for name, term in terms.items()}
        return means["policy_loss"] + 0.5 * means["value_loss"] - hyper["entropy_coef"] * means["entropy"], means

    def update(state: Tree, batch: Fragment, key: jax.Array, axis: str | None = None) -> tuple:
        def add_up(x: Tree) -> Tree:  # over the devices that share the rows, if there are several
            return x if axis is None else jax.lax.psum(x, axis)

        params, moments, hyper = state
        count = jnp.maximum(add_up(jnp.sum(batch.valid)), 1)
        gradient, metrics = add_up(jax.grad(loss, has_aux=True)(params, hyper, batch, count))
        step, moments = adam.update(gradient, moments)
        params = jax.tree.map(lambda p, s: p - hyper["learning_rate"] * s, params, step)
        return (params, moments, hyper), metrics, ()

    how = init, lambda state: state[0], lambda _, batch: network.memory(batch), act, update
    return Algorithm(Fragments(config.fragment_length, config.gamma), *how)
