"""Proximal policy optimisation (Schulman et al., 2017), clipped or with an adaptive KL penalty.

Reads top to bottom: state, act, advantages, minibatch epochs, loss, gradient step. Values are computed
in the update, with the learner's parameters, so acting costs the policy network only.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.algorithms import collectives, minibatches
from podium.algorithms import stochastic_policy as policies
from podium.algorithms.advantages import Estimator, by_gae
from podium.algorithms.algorithm import Algorithm, Fragments
from podium.algorithms.collectives import ROWS_PER_CORE, add_up
from podium.algorithms.optimizers import COARSE_ADAM, OptimizedParams, anneal, clip, count_on, descend, part_done
from podium.algorithms.steps import Steps, explained_variance, to_items, to_rows, weigh
from podium.algorithms.stochastic_policy import Params, StochasticPolicy, normalize
from podium.core.algorithm_configs import STEP_SHARE, PPOConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.types import Fragment, Tree
from podium.networks.network import Network
from podium.ops import statistics
from podium.ops.masking import zero_where


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    params: Params
    optimizer: dict[str, optax.OptState]  # of each part of the parameters, see `PPO.split`
    returns: statistics.RunningStatistics
    kl_coef: jax.Array
    steps: jax.Array  # uint32[2] by `count_on`: valid steps trained on, which schedules count in
    hyper: dict[str, jax.Array]


def make(config: PPOConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """PPO for one environment spec."""
    return make_with(by_gae, config, experiment, spec)


def make_with(estimator: Estimator, config: PPOConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """The same with another estimator of advantages: APPO."""
    policy = policies.make(config, experiment, spec)
    ppo = PPO(config, experiment, policy, estimator)
    _check(config, experiment.rows_per_update(spec), policy.network, ppo.recurrent)
    return Algorithm(
        experience=ppo.experience,
        init=ppo.init,
        params=lambda state: state.params,
        memory=lambda params, batch: policy.network.memory(batch),
        act=policy.act,
        update=ppo.update,
    )


@dataclass(frozen=True, eq=False)
class PPO:
    """The pure functions of the algorithm, for one experiment and environment spec."""

    config: PPOConfig
    experiment: Experiment
    policy: StochasticPolicy
    estimator: Estimator

    @property
    def network(self) -> Network:
        return self.policy.network

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.network.memory(1))))

    @property
    def in_parts(self) -> bool:
        """Whether policy and value are clipped each by its own norm."""
        return self.network.separate and self.config.grad_norm_of == "each"

    @property
    def trains_apart(self) -> bool:
        """Whether policy and value can be trained each on a device of its own: neither's update needs the other's."""
        return self.in_parts and self.config.kl_stop is None

    @property
    def experience(self) -> Fragments:
        # Devices meet before and after the epochs, which takes as long as to train on some thousand rows.
        rows = self.config.num_epochs * self.experiment.rows_per_update(self.policy.spec)
        pays = self.trains_apart and rows >= ROWS_PER_CORE
        config = self.config
        return Fragments(
            config.fragment_length, config.gamma, config.minibatch_size, self.recurrent, parts=2 if pays else 1
        )

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        params = self.policy.init(key)
        return TrainState(
            params=params,
            optimizer={name: COARSE_ADAM.init(part) for name, part in self.split(params).items()},
            returns=statistics.init(jnp.zeros(())),
            kl_coef=jnp.ones(()),
            steps=jnp.zeros(2, jnp.uint32),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def split(self, params: Params) -> dict[str, Tree]:
        """The parameters that gradients change, in parts that are clipped and trained each by itself."""
        if not self.in_parts:
            return {"both": {"network": params.network, "log_std": params.log_std}}
        policy, value = params.network["policy"], params.network["value"]
        return {"policy": {"network": policy, "log_std": params.log_std}, "value": {"network": value}}

    def join(self, params: Params, parts: dict[str, Tree]) -> Params:
        """`params` with these parts in their places."""
        parts = self.split(params) | parts
        if not self.in_parts:
            return params._replace(**parts["both"])
        network = {name: parts[name]["network"] for name in ("policy", "value")}
        return params._replace(network=network, log_std=parts["policy"]["log_std"])

    def update(self, state: TrainState, batch: Fragment, key: jax.Array, axis: str | None = None) -> tuple:
        # Rewards are scaled by statistics that know them; observations by those that the actors used, so
        # that the first ratio is 1.
        state = state._replace(returns=statistics.update(state.returns, batch.discounted, batch.valid, axis))
        rows = self.prepare(state, batch)
        parts, metrics = self.train(state, to_items(rows, self.recurrent), key, axis)
        hyper = state.hyper
        value_loss, bonus = hyper["value_coef"] * metrics["value_loss"], hyper["entropy_coef"] * metrics["entropy"]
        metrics["loss"] = metrics["policy_loss"] + value_loss - bonus
        metrics["explained_variance"] = explained_variance(rows, axis)
        metrics["learning_rate"] = self.learning_rate(state)
        params = self.join(state.params, {name: part.params for name, part in parts.items()})
        if self.config.objective == "adaptive_kl":
            metrics |= {"kl": self.divergence(state, params, rows, axis), "kl_coef": state.kl_coef}
        state = state._replace(params=params, optimizer={name: part.optimizer for name, part in parts.items()})
        return self.finish(state, batch, metrics, axis), metrics, ()

    def prepare(self, state: TrainState, batch: Fragment) -> Steps:
        """Advantages and value targets of the whole fragment, with the parameters of the update's start."""
        obs = normalize(state.params, batch.obs)
        outputs, value, _ = self.network.apply(state.params.network, batch.memory, obs, batch.first)
        reward = statistics.scale(state.returns, batch.reward) if self.config.normalize_rewards else batch.reward
        mask = None if batch.mask is None else batch.mask[:-1]
        log_prob = self.policy.distribution(state.params, outputs[:-1], mask).log_prob(batch.action)
        log_ratio = log_prob - batch.extras["log_prob"]
        found = self.estimator.find(state.hyper, batch._replace(reward=reward), value, log_ratio)
        resets = batch.first[1:]  # rows whose observation is the final one of an episode, and may be NaN
        return Steps(
            obs=zero_where(resets, jax.tree.map(lambda x: x[:-1], obs)),
            first=batch.first[:-1],
            mask=mask,
            action=batch.action,
            log_prob=batch.extras["log_prob"],
            advantage=found.advantage,
            target=found.target,
            value=value[:-1],
            outputs=outputs[:-1] if self.config.objective == "adaptive_kl" else None,
            weight=batch.valid.astype(jnp.float32),
            memory=batch.memory,
        )

    def train(self, start: TrainState, items: Steps, key: jax.Array, axis: str | None) -> tuple[dict, dict]:
        """The parts of the parameters after all epochs over this device's items, and the means of the metrics."""
        parts = {
            name: OptimizedParams(params, start.optimizer[name]) for name, params in self.split(start.params).items()
        }
        if axis is None or not self.should_divide_parts(jax.lax.axis_size(axis)):
            return self.run_epochs(parts, start, items, key, axis)
        everything = collectives.gather(items, axis)

        def train_alone(name: str) -> tuple[dict[str, OptimizedParams], dict]:
            return self.run_epochs({name: parts[name]}, start, everything, key, axis=None)

        jobs = [lambda: train_alone("policy"), lambda: train_alone("value")]
        (policy, policy_metrics), (value, value_metrics) = collectives.do_one_each(jobs, axis)
        return {**policy, **value}, {**policy_metrics, **value_metrics}

    def should_divide_parts(self, devices: int) -> bool:
        """Whether a device trains one part on all rows, rather than all parts on its share of the rows.

        The parameters come out the same, and no device waits for another within the epochs.
        """
        small = self.config.minibatch_size < devices * ROWS_PER_CORE
        return self.trains_apart and small and jax.default_backend() == "cpu"

    def run_epochs(
        self, parts: dict[str, OptimizedParams], start: TrainState, items: Steps, key: jax.Array, axis: str | None
    ) -> tuple[dict[str, OptimizedParams], dict[str, jax.Array]]:
        """Train these parts in minibatches of the items, all items once an epoch."""
        config, spec, experiment = self.config, self.policy.spec, self.experiment
        blocks = self.experience.blocks(spec.rows(experiment.env.num_envs))
        num_minibatches = experiment.rows_per_update(spec) // config.minibatch_size

        def step(carry: tuple[dict[str, OptimizedParams], jax.Array], minibatch: tuple) -> tuple:
            parts, stopped = carry
            index, weight, advantage = minibatch
            picked = jax.tree.map(lambda x: x[index], items)
            rows = to_rows(picked._replace(weight=weight, advantage=advantage), self.recurrent)
            if config.kl_stop is None:
                parts, metrics = self.gradient_step(parts, start, rows, axis)
                return (parts, stopped), (metrics, jnp.float32(1))
            parts, metrics = jax.lax.cond(
                stopped, lambda: (parts, nothing), lambda: self.gradient_step(parts, start, rows, axis)
            )
            return (parts, stopped | (metrics["approx_kl"] > config.kl_stop)), (metrics, 1.0 - stopped)

        def epoch(carry: tuple[dict[str, OptimizedParams], jax.Array], key: jax.Array) -> tuple:
            index = minibatches.shuffle(key, len(items.weight), num_minibatches, blocks, axis)
            return jax.lax.scan(step, carry, (index, *weigh(items, index, config.normalize_advantages, axis)))

        nothing = dict.fromkeys(METRICS, jnp.float32(0))
        keys = jax.random.split(key, config.num_epochs)
        (parts, _), (metrics, ran) = jax.lax.scan(epoch, (parts, jnp.zeros((), bool)), keys)
        return parts, {name: jnp.sum(m * ran) / jnp.sum(ran) for name, m in metrics.items()}

    def gradient_step(
        self, parts: dict[str, OptimizedParams], start: TrainState, rows: Steps, axis: str | None
    ) -> tuple:
        params = {name: part.params for name, part in parts.items()}

        def differentiate(rows: Steps) -> tuple[dict[str, Tree], dict]:
            return jax.grad(self.loss, has_aux=True)(params, start, rows)

        gradients, metrics = add_up(minibatches.sum_over_chunks(differentiate, rows, self.policy.chunk), axis)
        return {name: self.descend(part, gradients[name], start) for name, part in parts.items()}, metrics

    def descend(self, part: OptimizedParams, gradient: Tree, start: TrainState) -> OptimizedParams:
        """A step of Adam against the gradient, which is first scaled down to the largest norm allowed."""
        return descend(part, clip(gradient, start.hyper["max_grad_norm"]), self.learning_rate(start), COARSE_ADAM)

    def learning_rate(self, state: TrainState) -> jax.Array:
        progress = part_done(state.steps, state.hyper[STEP_SHARE]) / len(self.policy.spec.agents)
        return anneal(state.hyper["learning_rate"], self.config.schedule, progress)

    def loss(self, parts: dict[str, Tree], start: TrainState, rows: Steps) -> tuple[jax.Array, dict]:
        """The loss of weighed rows [T, b] and what to report of them. A part alone has the terms that depend on it."""
        params = self.join(start.params, parts)
        memory = jax.tree.map(lambda m: m[0], rows.memory)
        outputs, value, _ = self.network.apply(params.network, memory, rows.obs, rows.first)
        total, metrics = jnp.zeros(()), {}
        if parts.keys() != {"value"}:
            loss, reported = self.policy_terms(self.policy.distribution(params, outputs, rows.mask), start, rows)
            total, metrics = total + loss, metrics | reported
        if parts.keys() != {"policy"}:
            value_loss = self.value_loss(value, rows)
            total, metrics = total + start.hyper["value_coef"] * value_loss, metrics | {"value_loss": value_loss}
        return total, metrics

    def policy_terms(self, policy: Any, start: TrainState, rows: Steps) -> tuple[jax.Array, dict]:
        """The surrogate objective and the entropy bonus."""
        hyper, advantage = start.hyper, rows.advantage
        # Of a row that weighs nothing the action is blank, and its ratio may be inf: 0 times that would be NaN.
        log_ratio = jnp.where(rows.weight > 0, policy.log_prob(rows.action) - rows.log_prob, 0.0)
        ratio = jnp.exp(log_ratio)
        if self.config.objective == "clip":
            clipped = jnp.clip(ratio, 1 - hyper["clip"], 1 + hyper["clip"])
            policy_loss = -rows.mean(jnp.minimum(ratio * advantage, clipped * advantage))
        else:
            before = self.policy.distribution(start.params, rows.outputs, rows.mask)
            policy_loss = -rows.mean(ratio * advantage) + start.kl_coef * rows.mean(before.kl(policy))
        entropy = rows.mean(policy.entropy())
        return policy_loss - hyper["entropy_coef"] * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": rows.mean(ratio - 1 - log_ratio),
            "clip_fraction": rows.mean(jnp.abs(ratio - 1) > hyper["clip"]),
        }

    def value_loss(self, value: jax.Array, rows: Steps) -> jax.Array:
        """Half the squared error, of the clipped value where that is larger."""
        error, reach = (value - rows.target) ** 2, self.config.value_clip
        if reach is not None:
            near = rows.value + jnp.clip(value - rows.value, -reach, reach)
            error = jnp.maximum(error, (near - rows.target) ** 2)
        return 0.5 * rows.mean(error)

    def divergence(self, start: TrainState, params: Params, rows: Steps, axis: str | None) -> jax.Array:
        """The mean KL divergence of the policy after the update from the one before it."""
        outputs, _, _ = self.network.apply(params.network, rows.memory, rows.obs, rows.first)
        before = self.policy.distribution(start.params, rows.outputs, rows.mask)
        each = jnp.where(rows.weight > 0, before.kl(self.policy.distribution(params, outputs, rows.mask)), 0)
        return add_up(jnp.sum(each), axis) / jnp.maximum(add_up(jnp.sum(rows.weight), axis), 1)

    def finish(self, state: TrainState, batch: Fragment, metrics: dict, axis: str | None) -> TrainState:
        """What changes once an update: the observation statistics, the KL coefficient, the count."""
        params, coef, target = state.params, state.kl_coef, self.config.kl_target
        if params.observations is not None:
            seen = jax.tree.map(lambda x: x[:-1], batch.obs)
            params = params._replace(observations=statistics.update(params.observations, seen, batch.valid, axis))
        if self.config.objective == "adaptive_kl":
            kl = metrics["kl"]
            coef = jnp.where(kl > 1.5 * target, coef * 2, jnp.where(kl < target / 1.5, coef / 2, coef))
        steps = count_on(state.steps, add_up(jnp.sum(batch.valid), axis))
        return state._replace(params=params, kl_coef=jnp.clip(coef, 1e-4, 1e4), steps=steps)


METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
"""What a gradient step on all parts reports."""


def _check(config: PPOConfig, rows: int, network: Network, recurrent: bool) -> None:
    """Refuse what cannot work, before anything is compiled."""
    if rows % config.minibatch_size:
        raise ConfigError(
            f"algorithm.minibatch_size = {config.minibatch_size}: must divide fragment_length x num_envs = {rows}"
        )
    if recurrent and config.minibatch_size % config.fragment_length:
        raise ConfigError(
            f"algorithm.minibatch_size = {config.minibatch_size}: with a recurrent network it must be a multiple of "
            f"algorithm.fragment_length = {config.fragment_length}, since minibatches are whole sequences"
        )
    if config.grad_norm_of == "each" and not network.separate:
        raise ConfigError("algorithm.grad_norm_of = 'each': policy and value share parameters here; use all")
