"""Proximal policy optimisation (Schulman et al., 2017), clipped or with an adaptive KL penalty.

Reads top to bottom: state, act, advantages, loss, minibatch epochs. Values are computed in the
update, with the learner's parameters, so acting costs the policy network only.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from podium.algorithms import minibatches
from podium.algorithms.algorithm import Algorithm, Fragments
from podium.core.config import Experiment, PPOConfig
from podium.core.errors import ConfigError
from podium.core.specs import Box, EnvSpec
from podium.core.types import ActInput, Fragment, Tree
from podium.networks import network as networks
from podium.ops import distributions, statistics
from podium.ops.returns import generalized_advantages


class Params(NamedTuple):
    """What actors need: the network, the Gaussian's width, and the observation normaliser."""

    network: Tree
    log_std: jax.Array | None
    observations: statistics.RunningStatistics | None


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    params: Params
    optimizer: optax.OptState
    returns: statistics.RunningStatistics
    kl_coef: jax.Array
    steps: jax.Array  # valid steps trained on, which schedules count in
    hyper: dict[str, jax.Array]


class Minibatch(NamedTuple):
    """Rows of a fragment, with what the update computed for them."""

    obs: Tree
    first: jax.Array
    mask: jax.Array | None
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    value: jax.Array
    outputs: Any  # of the policy before the update, for the KL penalty
    valid: jax.Array
    memory: Tree


def make(config: PPOConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """PPO for one environment spec."""
    network = networks.make(experiment.network, spec, distributions.num_outputs(spec.action))
    recurrent = bool(jax.tree.leaves(jax.eval_shape(lambda: network.memory(1))))
    _check(config, experiment, spec, recurrent)
    optimizer = optax.scale_by_adam(eps=1e-5)
    rows_per_minibatch = config.minibatch_size // config.fragment_length if recurrent else config.minibatch_size
    blocks = minibatches.num_blocks(experiment.env.num_envs, rows_per_minibatch)
    num_minibatches = experiment.steps_per_update // config.minibatch_size

    def init(key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        log_std = None
        if isinstance(spec.action, Box):
            log_std = jnp.full(spec.action.size, config.log_std)
        observations = statistics.init(spec.observation) if config.normalize_observations else None
        params = Params(network.init(key), log_std, observations)
        return TrainState(
            params=params,
            optimizer=optimizer.init(_trained(params)),
            returns=statistics.init(jnp.zeros(())),
            kl_coef=jnp.ones(()),
            steps=jnp.zeros(()),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def distribution(params: Params, outputs: jax.Array, mask: jax.Array | None) -> Any:
        return distributions.make(spec.action, outputs, params.log_std, mask, config.squash)

    def normalize(params: Params, obs: Tree) -> Tree:
        return obs if params.observations is None else statistics.normalize(params.observations, obs)

    def act(params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        obs = jax.tree.map(lambda x: x[None], normalize(params, inputs.obs))
        outputs, _, memory = network.apply(params.network, memory, obs, inputs.first[None])
        policy = distribution(params, outputs[0], inputs.mask)
        action = policy.mode() if greedy else policy.sample(inputs.key)
        # Of the action as the learner will see it: a squashed one on its bound has lost digits on both sides.
        return action, {"log_prob": policy.log_prob(action)}, memory

    def prepare(state: TrainState, batch: Fragment) -> Minibatch:
        """Advantages and value targets of the whole fragment, with the parameters of the update's start."""
        obs = normalize(state.params, batch.obs)
        outputs, value, _ = network.apply(state.params.network, batch.memory, obs, batch.first)
        reward = statistics.scale(state.returns, batch.reward) if config.normalize_rewards else batch.reward
        gamma, lambda_ = state.hyper["gamma"], state.hyper["gae_lambda"]
        advantage = generalized_advantages(reward, value, batch.terminated, batch.truncated, gamma, lambda_)
        return Minibatch(
            obs=jax.tree.map(lambda x: x[:-1], obs),
            first=batch.first[:-1],
            mask=None if batch.mask is None else batch.mask[:-1],
            action=batch.action,
            log_prob=batch.extras["log_prob"],
            advantage=advantage,
            target=advantage + value[:-1],
            value=value[:-1],
            outputs=outputs[:-1] if config.objective == "adaptive_kl" else None,
            valid=batch.valid.astype(jnp.float32),
            memory=batch.memory,
        )

    def weigh(items: Minibatch, index: jax.Array, axis: str | None) -> tuple[jax.Array, jax.Array]:
        """Weights that add up to 1 over each minibatch's valid steps, and advantages normalised over them.

        For all minibatches of an epoch at once: in the loop, each sum over devices would cost as much as a layer.
        """
        valid, advantage = items.valid[index], items.advantage[index]
        inner = tuple(range(1, valid.ndim))

        def total(x: jax.Array) -> jax.Array:
            return _psum(jnp.sum(x, axis=inner, keepdims=True), axis)

        weight = valid / jnp.maximum(total(valid), 1.0)
        if config.normalize_advantages:
            advantage = advantage - total(advantage * weight)
            advantage = advantage / (jnp.sqrt(total(advantage**2 * weight)) + 1e-8)
        return weight, advantage

    def loss(trained: Tree, state: TrainState, rows: Minibatch) -> tuple[jax.Array, dict]:
        """The loss of weighed rows [T, b] and what to report of them. Reset rows weigh nothing."""
        hyper = state.hyper
        params = state.params._replace(**trained)
        memory = jax.tree.map(lambda m: m[0], rows.memory)
        outputs, value, _ = network.apply(params.network, memory, rows.obs, rows.first)
        policy = distribution(params, outputs, rows.mask)
        advantage = rows.advantage

        def mean(x: jax.Array) -> jax.Array:
            """These rows' part of the minibatch's mean: parts add up, over chunks and over devices."""
            return jnp.sum(x * rows.valid)

        log_ratio = policy.log_prob(rows.action) - rows.log_prob
        ratio = jnp.exp(log_ratio)
        if config.objective == "clip":
            clipped = jnp.clip(ratio, 1 - hyper["clip"], 1 + hyper["clip"])
            policy_loss = -mean(jnp.minimum(ratio * advantage, clipped * advantage))
        else:
            before = distribution(state.params, rows.outputs, rows.mask)
            policy_loss = -mean(ratio * advantage) + state.kl_coef * mean(before.kl(policy))

        error = (value - rows.target) ** 2
        if config.value_clip is not None:
            near = rows.value + jnp.clip(value - rows.value, -config.value_clip, config.value_clip)
            error = jnp.maximum(error, (near - rows.target) ** 2)
        value_loss = 0.5 * mean(error)
        entropy = mean(policy.entropy())
        total = policy_loss + hyper["value_coef"] * value_loss - hyper["entropy_coef"] * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean(ratio - 1 - log_ratio),
            "clip_fraction": mean(jnp.abs(ratio - 1) > hyper["clip"]),
        }

    def gradient_step(state: TrainState, start: TrainState, rows: Minibatch, axis: str | None) -> tuple:
        trained = _trained(state.params)

        def parts(rows: Minibatch) -> tuple[Tree, dict]:
            return jax.grad(loss, has_aux=True)(trained, start, rows)

        gradient, metrics = _sum_over_axis(minibatches.sum_over_chunks(parts, rows), axis)
        shrink = jnp.minimum(1.0, state.hyper["max_grad_norm"] / (optax.tree.norm(gradient) + 1e-6))
        step, moments = optimizer.update(jax.tree.map(lambda g: shrink * g, gradient), state.optimizer)
        rate = learning_rate(start)
        trained = jax.tree.map(lambda p, s: p - rate * s, trained, step)
        return state._replace(params=state.params._replace(**trained), optimizer=moments), metrics

    def learning_rate(state: TrainState) -> jax.Array:
        rate = state.hyper["learning_rate"]
        if config.schedule == "linear":
            rate = rate * jnp.maximum(0.0, 1 - state.steps / experiment.limits.total_steps)
        return rate

    def update(state: TrainState, batch: Fragment, key: jax.Array, axis: str | None = None) -> tuple:
        # Rewards are scaled by statistics that know them; observations by those that the actors used, so
        # that the first ratio is 1.
        state = state._replace(returns=statistics.update(state.returns, batch.discounted, batch.valid, axis))
        start, whole = state, prepare(state, batch)
        items = _to_items(whole, recurrent)

        def step(carry: tuple[TrainState, jax.Array], minibatch: tuple) -> tuple:
            state, stopped = carry
            index, weight, advantage = minibatch
            picked = jax.tree.map(lambda x: x[index], items)
            rows = _to_rows(picked._replace(valid=weight, advantage=advantage), recurrent)
            if config.kl_stop is None:
                state, metrics = gradient_step(state, start, rows, axis)
                return (state, stopped), (metrics, jnp.float32(1))
            state, metrics = jax.lax.cond(
                stopped, lambda: (state, nothing), lambda: gradient_step(state, start, rows, axis)
            )
            return (state, stopped | (metrics["approx_kl"] > config.kl_stop)), (metrics, 1.0 - stopped)

        def epoch(carry: tuple[TrainState, jax.Array], key: jax.Array) -> tuple:
            index = minibatches.shuffle(key, len(items.valid), num_minibatches, blocks, axis)
            return jax.lax.scan(step, carry, (index, *weigh(items, index, axis)))

        nothing = dict.fromkeys(METRICS, jnp.float32(0))
        keys = jax.random.split(key, config.num_epochs)
        (state, _), (metrics, ran) = jax.lax.scan(epoch, (state, jnp.zeros((), bool)), keys)
        metrics = {name: jnp.sum(m * ran) / jnp.sum(ran) for name, m in metrics.items()}
        metrics["explained_variance"] = _explained_variance(whole, axis)
        metrics["learning_rate"] = learning_rate(start)
        if config.objective == "adaptive_kl":
            metrics["kl_coef"] = state.kl_coef
        return finish(state, batch, metrics, axis), metrics, ()

    def finish(state: TrainState, batch: Fragment, metrics: dict, axis: str | None) -> TrainState:
        """What changes once an update: the observation statistics, the KL coefficient, the count."""
        params = state.params
        if params.observations is not None:
            seen = jax.tree.map(lambda x: x[:-1], batch.obs)
            params = params._replace(observations=statistics.update(params.observations, seen, batch.valid, axis))
        kl, coef = metrics["approx_kl"], state.kl_coef
        coef = jnp.where(kl > 1.5 * config.kl_target, coef * 2, jnp.where(kl < config.kl_target / 1.5, coef / 2, coef))
        steps = state.steps + _psum(jnp.sum(batch.valid), axis)
        return state._replace(params=params, kl_coef=jnp.clip(coef, 1e-4, 1e4), steps=steps)

    return Algorithm(
        experience=Fragments(config.fragment_length, config.gamma),
        init=init,
        params=lambda state: state.params,
        memory=lambda params, batch: network.memory(batch),
        act=act,
        update=update,
    )


METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def _trained(params: Params) -> dict[str, Tree]:
    """The part of the parameters that gradients change."""
    return {"network": params.network, "log_std": params.log_std}


def _sum_over_axis(parts: Tree, axis: str | None) -> Tree:
    """Sum over devices as one array: twenty small sums would cost twenty meetings."""
    if axis is None:
        return parts
    flat, to_parts = ravel_pytree(parts)
    return to_parts(jax.lax.psum(flat, axis))


def _psum(x: Tree, axis: str | None) -> Tree:
    return x if axis is None else jax.lax.psum(x, axis)


def _to_items(rows: Minibatch, recurrent: bool) -> Minibatch:
    """[T, B, ...] to what is shuffled, along the first axis: sequences [B, T, ...] or single steps [B * T, ...].

    Environments stay together, and so do the blocks of `minibatches.shuffle`.
    """
    # What a reset row holds is left out rather than weighed by 0: a final observation may be NaN.
    whole = jax.tree.map(lambda x: jnp.where(_like(rows.valid > 0, x), x, 0), rows._replace(memory=()))
    items = jax.tree.map(lambda x: x.swapaxes(0, 1), whole._replace(first=rows.first))
    if not recurrent:
        items = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
    return items._replace(memory=rows.memory)


def _to_rows(items: Minibatch, recurrent: bool) -> Minibatch:
    """Items of a minibatch as [T, b, ...] again, memory as [1, b, ...]; single steps are fragments of length 1."""
    rows = jax.tree.map(lambda x: x.swapaxes(0, 1) if recurrent else x[None], items._replace(memory=()))
    return rows._replace(memory=jax.tree.map(lambda m: m[None], items.memory))


def _like(flags: jax.Array, x: jax.Array) -> jax.Array:
    """Flags [T, B] with as many axes as x [T, B, ...]."""
    return flags.reshape(*flags.shape, *(1,) * (x.ndim - flags.ndim))


def _explained_variance(rows: Minibatch, axis: str | None) -> jax.Array:
    """1 - Var(target - value) / Var(target): 1 is a perfect critic, 0 a useless one."""

    valid = rows.valid > 0
    count = jnp.maximum(_psum(jnp.sum(valid), axis), 1)

    def variance(x: jax.Array) -> jax.Array:
        x = jnp.where(valid, x, 0)
        centred = jnp.where(valid, x - _psum(jnp.sum(x), axis) / count, 0)
        return _psum(jnp.sum(centred**2), axis) / count

    return 1 - variance(rows.target - rows.value) / (variance(rows.target) + 1e-8)


def _check(config: PPOConfig, experiment: Experiment, spec: EnvSpec, recurrent: bool) -> None:
    """Refuse what cannot work, before anything is compiled."""
    rows = experiment.steps_per_update
    if rows % config.minibatch_size:
        raise ConfigError(
            f"algorithm.minibatch_size = {config.minibatch_size}: must divide fragment_length x num_envs = {rows}"
        )
    if recurrent and config.minibatch_size % config.fragment_length:
        raise ConfigError(
            f"algorithm.minibatch_size = {config.minibatch_size}: with a recurrent network it must be a multiple of "
            f"algorithm.fragment_length = {config.fragment_length}, since minibatches are whole sequences"
        )
    if config.squash and not (isinstance(spec.action, Box) and spec.action.is_bounded):
        raise ConfigError("algorithm.squash = true: needs continuous actions with finite bounds; use false here")
