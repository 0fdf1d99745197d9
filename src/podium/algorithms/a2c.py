"""Advantage actor-critic (Mnih et al., 2016, without asynchrony): one gradient step on each fragment, then it is gone.

Reads top to bottom: state, act, update, loss. The simplest algorithm here, to compare others with, and the body of
IMPALA, which estimates advantages otherwise (`algorithms.advantages`). The optimizer is Adam, where the paper had
RMSProp: its step sizes carry over to PPO and back.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.algorithms import minibatches
from podium.algorithms import stochastic_policy as policies
from podium.algorithms.advantages import Estimate, Estimator, by_gae
from podium.algorithms.algorithm import Algorithm, Fragments
from podium.algorithms.collectives import add_up
from podium.algorithms.optimizers import COARSE_ADAM, OptimizedParams, anneal, clip, count_on, descend, part_done
from podium.algorithms.stochastic_policy import Params, StochasticPolicy, normalize
from podium.core.algorithm_configs import STEP_SHARE, A2CConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.types import Fragment, Tree
from podium.ops import statistics
from podium.ops.masking import zero_where


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    params: Params
    optimizer: optax.OptState
    returns: statistics.RunningStatistics
    steps: jax.Array  # uint32[2] by `count_on`: valid steps trained on, which the schedule counts in
    hyper: dict[str, jax.Array]


class Passes(NamedTuple):
    """How often the steps of an update are gone over, and in how many gradient steps each time."""

    epochs: int
    minibatches: int


ONCE = Passes(epochs=1, minibatches=1)


class TrainingRows(NamedTuple):
    """Some columns of a fragment: rewards scaled, memory as [1, b, ...]."""

    fragment: Fragment
    found: Estimate | None  # at the update's start; None: as the parameters now estimate it
    weight: jax.Array  # [T, b]: adds up to 1 over the columns of all devices; 0 in a reset row

    def mean(self, x: jax.Array) -> jax.Array:
        """These rows' part of the mean of x [T, b]: parts add up, over chunks and over devices."""
        return jnp.sum(jnp.where(self.weight > 0, self.weight * x, 0.0))


class Judgement(NamedTuple):
    """Of the steps [T, b] of some rows: the policy, values (also of what comes after them), log-probabilities."""

    policy: Any
    value: jax.Array
    log_prob: jax.Array
    log_ratio: jax.Array  # to the actor's


def make(config: A2CConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """A2C for one environment spec."""
    return make_with(by_gae, config, experiment, spec)


def make_with(
    estimator: Estimator, config: A2CConfig, experiment: Experiment, spec: EnvSpec, passes: Passes = ONCE
) -> Algorithm:
    """The same with another estimator of advantages, which may allow several passes over a fragment."""
    policy = policies.make(config, experiment, spec)
    a2c = A2C(config, experiment, policy, estimator, passes)
    size = experiment.rows_per_update(spec) // passes.minibatches
    recurrent = bool(jax.tree.leaves(jax.eval_shape(lambda: policy.network.memory(1))))
    if recurrent and a2c.rows % passes.minibatches:
        raise ConfigError(
            f"algorithm.minibatch_size = {size}: with a recurrent network it must be a multiple of "
            f"algorithm.fragment_length = {config.fragment_length}, since minibatches are whole sequences"
        )
    return Algorithm(
        experience=Fragments(config.fragment_length, config.gamma, size, recurrent),
        init=a2c.init,
        params=lambda state: state.params,
        memory=lambda params, batch: policy.network.memory(batch),
        act=policy.act,
        update=a2c.update,
    )


@dataclass(frozen=True, eq=False)
class A2C:
    """The pure functions of the algorithm, for one experiment and environment spec."""

    config: A2CConfig
    experiment: Experiment
    policy: StochasticPolicy
    estimator: Estimator
    passes: Passes

    @property
    def rows(self) -> int:
        """Of a fragment, on all devices together."""
        return self.policy.spec.rows(self.experiment.env.num_envs)

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        params = self.policy.init(key)
        return TrainState(
            params=params,
            optimizer=COARSE_ADAM.init(_trained(params)),
            returns=statistics.init(jnp.zeros(())),
            steps=jnp.zeros(2, jnp.uint32),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def update(self, state: TrainState, batch: Fragment, key: jax.Array, axis: str | None = None) -> tuple:
        # Rewards are scaled by statistics that know them; observations by those that the actors used.
        state = state._replace(returns=statistics.update(state.returns, batch.discounted, batch.valid, axis))
        start = OptimizedParams(_trained(state.params), state.optimizer)
        (trained, optimizer), sums = self.train(start, state, self.prepare(state, batch), key, axis)
        params = state.params._replace(**trained)
        if params.observations is not None:
            seen = jax.tree.map(lambda x: x[:-1], batch.obs)
            params = params._replace(observations=statistics.update(params.observations, seen, batch.valid, axis))
        metrics = _report(sums) | {"learning_rate": self.learning_rate(state)}
        steps = count_on(state.steps, add_up(jnp.sum(batch.valid), axis))
        return state._replace(params=params, optimizer=optimizer, steps=steps), metrics, ()

    def train(
        self, start: OptimizedParams, state: TrainState, batch: Fragment, key: jax.Array, axis: str | None
    ) -> tuple:
        """The parameters after all gradient steps on a prepared fragment, and the means of what the steps report."""
        if self.passes == ONCE and not self.config.normalize_advantages:
            return self.gradient_step(start, state, batch, None, axis)
        found = self.find(start, state, batch, axis)
        if self.passes == ONCE:
            return self.gradient_step(start, state, batch, found, axis)
        items = self.to_items(batch, found)
        (epochs, steps), count = self.passes, items[1].advantage.shape[1]
        devices = 1 if axis is None else jax.lax.axis_size(axis)
        blocks = minibatches.num_blocks(self.rows, count * devices // steps)

        def step(part: OptimizedParams, index: jax.Array) -> tuple[OptimizedParams, dict]:
            rows, found = jax.tree.map(lambda x: x[:, index], items)
            return self.gradient_step(part, state, rows, found, axis)

        def epoch(part: OptimizedParams, key: jax.Array) -> tuple[OptimizedParams, dict]:
            return jax.lax.scan(step, part, minibatches.shuffle(key, count, steps, blocks, axis))

        part, sums = jax.lax.scan(epoch, start, jax.random.split(key, epochs))
        return part, jax.tree.map(jnp.mean, sums)

    def find(self, start: OptimizedParams, state: TrainState, batch: Fragment, axis: str | None) -> Estimate:
        """Advantages and value targets by the parameters of the update's start.

        Estimated anew in each gradient step, they would move with the values that the steps before have moved: all
        advantages at once, up or down.
        """
        judged = self.judge(start.params, state, batch)
        found = self.estimator.find(state.hyper, batch, judged.value, judged.log_ratio)
        if not self.config.normalize_advantages:
            return found
        rows = weigh(batch, None, axis)
        mean, square = add_up((rows.mean(found.advantage), rows.mean(found.advantage**2)), axis)
        deviation = jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
        return found._replace(advantage=(found.advantage - mean) / (deviation + 1e-8))

    def to_items(self, batch: Fragment, found: Estimate) -> tuple[Fragment, Estimate]:
        """What minibatches are drawn from, along the second axis: sequences where there is memory, else single steps,
        [1, B * T, ...]. Environments stay together, and so do the blocks of `minibatches.shuffle`.
        """
        if jax.tree.leaves(batch.memory):
            return batch, found
        steps = len(batch.action)
        return jax.tree.map(lambda x: x[:steps].swapaxes(0, 1).reshape(1, -1, *x.shape[2:]), (batch, found))

    def gradient_step(
        self, part: OptimizedParams, state: TrainState, batch: Fragment, found: Estimate | None, axis: str | None
    ) -> tuple[OptimizedParams, dict]:
        def differentiate(rows: TrainingRows) -> tuple[Tree, dict]:
            return jax.grad(self.loss, has_aux=True)(part.params, state, rows)

        rows = weigh(batch, found, axis)
        gradient, sums = add_up(minibatches.sum_over_chunks(differentiate, rows, self.policy.chunk), axis)
        gradient = clip(gradient, state.hyper["max_grad_norm"])
        return descend(part, gradient, self.learning_rate(state), COARSE_ADAM), sums

    def learning_rate(self, state: TrainState) -> jax.Array:
        progress = part_done(state.steps, state.hyper[STEP_SHARE]) / len(self.policy.spec.agents)
        return anneal(state.hyper["learning_rate"], self.config.schedule, progress)

    def prepare(self, state: TrainState, batch: Fragment) -> Fragment:
        """The fragment as the loss takes it. What nobody may look at is 0 in it: it might be NaN, and 0 times that too.

        A reset row's observation is the final one of its episode, whose value only a truncated episode of this fragment
        needs. Steps that are not valid because they are too old keep what they are: the returns of others need it.
        """
        resets = batch.first[1:]
        unseen = jnp.concatenate([resets[:1], batch.terminated])
        reward = statistics.scale(state.returns, batch.reward) if self.config.normalize_rewards else batch.reward
        return batch._replace(
            obs=zero_where(unseen, batch.obs),
            action=zero_where(resets, batch.action),
            reward=zero_where(resets, reward),
            extras={"log_prob": zero_where(resets, batch.extras["log_prob"])},
            memory=jax.tree.map(lambda m: m[None], batch.memory),
        )

    def judge(self, trained: Tree, state: TrainState, batch: Fragment) -> Judgement:
        """What the network says of these steps."""
        params, steps = state.params._replace(**trained), len(batch.action)
        memory = jax.tree.map(lambda m: m[0], batch.memory)
        outputs, value, _ = self.policy.network.apply(params.network, memory, normalize(params, batch.obs), batch.first)
        mask = None if batch.mask is None else batch.mask[:steps]
        policy = self.policy.distribution(params, outputs[:steps], mask)
        log_prob = policy.log_prob(batch.action)
        return Judgement(policy, value, log_prob, log_prob - batch.extras["log_prob"])

    def loss(self, trained: Tree, state: TrainState, rows: TrainingRows) -> tuple[jax.Array, dict]:
        """The loss of these rows and what to report of them, all as parts of sums."""
        policy, value, log_prob, log_ratio = self.judge(trained, state, rows.fragment)
        found = rows.found
        if found is None:
            found = jax.lax.stop_gradient(self.estimator.find(state.hyper, rows.fragment, value, log_ratio))
        weight = jax.lax.stop_gradient(self.estimator.weigh(state.hyper, log_ratio))
        hyper, error = state.hyper, found.target - value[: len(log_prob)]
        policy_loss = -rows.mean(weight * found.advantage * log_prob)
        value_loss, entropy = 0.5 * rows.mean(error**2), rows.mean(policy.entropy())
        loss = policy_loss + hyper["value_coef"] * value_loss - hyper["entropy_coef"] * entropy
        return loss, {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": rows.mean(jnp.expm1(log_ratio) - log_ratio),
            "moments": [rows.mean(x) for x in (error, error**2, found.target, found.target**2)],
        }


def weigh(batch: Fragment, found: Estimate | None, axis: str | None) -> TrainingRows:
    """The rows of a prepared fragment, each with its share of those that count on all devices."""
    return TrainingRows(batch, found, batch.valid / jnp.maximum(add_up(jnp.sum(batch.valid), axis), 1))


def _report(sums: dict) -> dict[str, jax.Array]:
    """The metrics; explained_variance is 1 - Var(target - value) / Var(target)."""
    error, error2, target, target2 = sums["moments"]
    explained = 1 - (error2 - error**2) / (target2 - target**2 + 1e-8)
    return {name: x for name, x in sums.items() if name != "moments"} | {"explained_variance": explained}


def _trained(params: Params) -> dict[str, Tree]:
    """What gradients change."""
    return {"network": params.network, "log_std": params.log_std}
