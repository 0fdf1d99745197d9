"""Deep Q-learning (Mnih et al., 2015): double, dueling, n-step, prioritised and recurrent as wished.

Reads top to bottom: state, act, update, errors of steps or of sequences, target. What differs with a recurrent
network is in `errors_of_sequences` alone: rows are then whole fragments, unrolled from the memory that the actor had.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.algorithms import off_policy
from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.algorithms.collectives import add_up
from podium.algorithms.optimizers import ADAM, OptimizedParams, anneal, clip, descend
from podium.core.algorithm_configs import STEP_SHARE, DQNConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import Box, Discrete, EnvSpec
from podium.core.types import ActInput, Fragment, Tree
from podium.networks import q_values
from podium.networks.q_values import QNetwork
from podium.ops import random_keys
from podium.ops.distributions import ILLEGAL
from podium.ops.masking import zero_where
from podium.ops.returns import n_step_returns

MOST = 0.9
"""A sequence's priority is its largest error by so much, and its mean error by the rest (Kapturowski et al., 2019)."""


class Params(NamedTuple):
    """What actors need."""

    network: Tree
    epsilon: jax.Array  # share of random actions, before an environment's own factor
    random: jax.Array  # bool: nothing was learned yet, so all actions are random


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    network: Tree
    target: Tree
    optimizer: optax.OptState
    updates: jax.Array  # ever made of this network, a run's before too that this one began from
    steps: jax.Array  # of them, in this run: what schedules count in
    hyper: dict[str, jax.Array]


class Errors(NamedTuple):
    """Temporal differences of steps [...] and what belongs to them."""

    error: jax.Array
    q: jax.Array  # of the action taken
    weight: jax.Array  # 0 where a step must be left out
    priority: jax.Array  # [b]: of each row drawn


def make(config: DQNConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """DQN for one environment spec."""
    if not isinstance(spec.action, Discrete):
        bounded = isinstance(spec.action, Box) and spec.action.is_bounded
        others = "sac, td3 or ppo" if bounded else "ppo or a2c"
        raise ConfigError(f"algorithm.name = 'dqn': chooses one of n actions, but they are {spec.action}; use {others}")
    network = q_values.make(experiment.network, spec, config.dueling)
    if config.burn_in and not network.recurrent:
        raise ConfigError(f"algorithm.burn_in = {config.burn_in}: needs a network with memory; set network.memory=gru")
    dqn = DQN(config, experiment, network)
    return Algorithm(
        experience=off_policy.experience(config, sequences=network.recurrent),
        init=dqn.init,
        params=dqn.params,
        memory=lambda params, batch: network.memory(batch),
        act=dqn.act,
        update=dqn.update,
    )


@dataclass(frozen=True, eq=False)
class DQN:
    """The pure functions of the algorithm, for one experiment and environment spec."""

    config: DQNConfig
    experiment: Experiment
    network: QNetwork

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        network = self.network.init(key)
        return TrainState(
            network=network,
            target=jax.tree.map(jnp.copy, network),  # not the same buffers: a state is changed in place
            optimizer=ADAM.init(network),
            updates=jnp.zeros((), jnp.int32),
            steps=jnp.zeros((), jnp.int32),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def params(self, state: TrainState) -> Params:
        return Params(state.network, self.epsilon(state), state.updates == 0)

    def epsilon(self, state: TrainState) -> jax.Array:
        """Falls in a straight line, from when learning starts on."""
        config = self.config
        steps = state.steps / config.update_ratio
        passed = steps * jnp.minimum(1.0, state.hyper[STEP_SHARE] / config.epsilon_decay)
        return config.epsilon_start + jnp.minimum(1.0, passed) * (config.epsilon_end - config.epsilon_start)

    def learning_rate(self, state: TrainState) -> jax.Array:
        steps = self.config.learning_starts + state.steps / self.config.update_ratio
        return anneal(state.hyper["learning_rate"], self.config.schedule, steps * state.hyper[STEP_SHARE])

    def act(self, params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        obs = jax.tree.map(lambda x: x[None], inputs.obs)
        q, memory = self.network.apply(params.network, memory, obs, inputs.first[None])
        action = best(q[0], inputs.mask)
        if not greedy:
            epsilon = jnp.where(params.random, inputs.exploration > 0, params.epsilon * inputs.exploration)
            chance, choice = jnp.moveaxis(random_keys.uniform(inputs.key, (2,)), -1, 0)
            action = jnp.where(chance < epsilon, pick(choice, q.shape[-1], inputs.mask), action)
        return action, (), memory

    def update(self, state: TrainState, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        def loss(network: Tree) -> tuple[jax.Array, Errors]:
            rows, weight = batch
            if isinstance(rows, Fragment):
                errors = self.errors_of_sequences(network, state, rows, weight, draw_burning(key, len(weight), axis))
            else:
                errors = self.errors_of_steps(network, state, rows, weight)
            return jnp.sum(errors.weight * optax.huber_loss(errors.error)), errors

        (total, errors), gradient = jax.value_and_grad(loss, has_aux=True)(state.network)
        counted = errors.weight > 0
        sums = {
            "loss": total,
            "td_error": jnp.sum(jnp.where(counted, jnp.abs(errors.error), 0.0)),
            "q_value": jnp.sum(jnp.where(counted, errors.q, 0.0)),
        }
        gradient, sums, count = add_up((gradient, sums, jnp.sum(counted, dtype=jnp.float32)), axis)
        gradient, metrics = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), (gradient, sums))
        metrics |= {"epsilon": self.epsilon(state), "learning_rate": self.learning_rate(state)}
        return self.descend(state, gradient), metrics, errors.priority

    def errors_of_steps(self, network: Tree, state: TrainState, rows: Transitions, weight: jax.Array) -> Errors:
        """Of single steps [b], each with the n that follow it."""
        # What must be left out is so from the start: a gradient times 0 would still be NaN where a row is.
        obs = zero_where(weight == 0, rows.obs)
        q = chosen(self.q(network, obs), rows.action)
        future = self.value(self.q(network, rows.next_obs), self.q(state.target, rows.next_obs), rows.next_mask)
        discounts = state.hyper["gamma"] ** jnp.arange(rows.rewards.shape[1])
        future = jnp.where(rows.terminated, 0.0, state.hyper["gamma"] ** rows.steps * future)
        target = jax.lax.stop_gradient(rows.rewards @ discounts + future)
        error = jnp.where(weight > 0, target - q, 0.0)
        return Errors(error, q, weight, jnp.abs(error))

    def errors_of_sequences(
        self, network: Tree, state: TrainState, rows: Fragment, weight: jax.Array, burns: jax.Array
    ) -> Errors:
        """Of the steps [T, b] of sequences: where one burns in, those after it, and those whose episode began here."""
        rows = without_last_words(rows, weight)
        q = self.unroll(network, rows)
        value = self.value(q, self.unroll(state.target, rows), rows.mask)
        ends = rows.terminated, rows.truncated
        target = n_step_returns(rows.reward, value, *ends, state.hyper["gamma"], self.config.n_step)
        began = jax.lax.cummax(rows.first[:-1].astype(jnp.int32), axis=0) > 0
        known = began | ~burns | (jnp.arange(len(began)) >= self.config.burn_in)[:, None]
        weight = jnp.where(rows.valid & known, weight, 0.0)
        q = chosen(q[:-1], rows.action)
        error = jnp.where(weight > 0, jax.lax.stop_gradient(target) - q, 0.0)
        size, count = jnp.abs(error), jnp.maximum(1, jnp.sum(weight > 0, axis=0))
        priority = MOST * jnp.max(size, axis=0) + (1 - MOST) * jnp.sum(size, axis=0) / count
        return Errors(error, q, weight, priority)

    def unroll(self, network: Tree, rows: Fragment) -> jax.Array:
        """Q-values [T + 1, b, n]; later ones have no gradients through the burn-in."""
        skip, memory, parts = self.config.burn_in, rows.memory, []
        for part in (slice(skip), slice(skip, None)) if skip else (slice(None),):
            obs = jax.tree.map(lambda x, part=part: x[part], rows.obs)
            q, memory = self.network.apply(network, memory, obs, rows.first[part])
            memory = jax.lax.stop_gradient(memory)
            parts.append(q)
        return jnp.concatenate(parts)

    def q(self, network: Tree, obs: Tree) -> jax.Array:
        """Q-values [b, n] of observations that no memory belongs to."""
        first = jnp.zeros((1, len(jax.tree.leaves(obs)[0])), bool)
        return self.network.apply(network, (), jax.tree.map(lambda x: x[None], obs), first)[0][0]

    def value(self, q: jax.Array, target_q: jax.Array, mask: jax.Array | None) -> jax.Array:
        """What states [...] are worth by the target network, if the best legal action is taken there: by the network's
        judgement where `double`, which does not take the target's errors for better actions (van Hasselt et al., 2016).
        """
        return chosen(target_q, best(q if self.config.double else target_q, mask))

    def descend(self, state: TrainState, gradient: Tree) -> TrainState:
        """A step of Adam against the gradient, scaled down to the largest norm allowed; the target follows."""
        hyper, part = state.hyper, OptimizedParams(state.network, state.optimizer)
        network, optimizer = descend(part, clip(gradient, hyper["max_grad_norm"]), self.learning_rate(state))
        target = off_policy.track(state.target, network, hyper["tau"])
        counts = {"updates": state.updates + 1, "steps": state.steps + 1}
        return state._replace(network=network, target=target, optimizer=optimizer, **counts)


def draw_burning(key: jax.Array, count: int, axis: str | None) -> jax.Array:
    """Which of this device's sequences burn in: bool[count], half of all, whoever has them.

    Not all, because sequences do not overlap: the steps that one burns in with are in no other, and what is never in a
    loss may be anything. At other times they are trained on from the memory that their actor had.
    """
    begin = 0 if axis is None else jax.lax.axis_index(axis) * count
    return random_keys.uniform(random_keys.row_keys(key, begin + jnp.arange(count), 0), ()) < 0.5


def best(q: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The legal action int32[...] of the greatest value in q [..., n]."""
    return jnp.argmax(q if mask is None else jnp.where(mask, q, ILLEGAL), axis=-1).astype(jnp.int32)


def pick(choice: jax.Array, num_actions: int, mask: jax.Array | None) -> jax.Array:
    """One of the legal actions by numbers [B] in [0, 1): all are as likely.

    >>> pick(jnp.array([0.0, 0.6]), 4, jnp.array([[False, True, False, True]] * 2)).tolist()
    [1, 3]
    """
    if mask is None:
        return (choice * num_actions).astype(jnp.int32)
    nth = jnp.floor(choice * jnp.sum(mask, axis=-1))
    return jnp.argmax(jnp.cumsum(mask, axis=-1) > nth[..., None], axis=-1).astype(jnp.int32)


def chosen(q: jax.Array, action: jax.Array) -> jax.Array:
    """The values [...] in q [..., n] of these actions."""
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]


def without_last_words(rows: Fragment, weight: jax.Array) -> Fragment:
    """Sequences with zeros for the observations that terminated episodes ended in, and for all of what weighs nothing:
    nobody asks for their values, and NaN in one of them would reach the gradient through the memory.
    """
    nothing = weight == 0
    over = jnp.concatenate([~rows.valid[:1], rows.terminated]) | nothing
    return rows._replace(obs=zero_where(over, rows.obs), memory=zero_where(nothing, rows.memory))
