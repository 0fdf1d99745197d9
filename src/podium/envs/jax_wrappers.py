"""Wrappers of one JAX environment, and the batch of them that resets itself (the fused mode's inner loop)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.core.specs import Array, Box, EnvSpec, Observation
from podium.core.types import Tree
from podium.envs.interface import JaxEnv, JaxStep, TimeStep
from podium.envs.wrappers import grows_axis, stack_spec


class BatchedJaxEnv(NamedTuple):
    """B environments as two pure functions, in the canonical layout.

    state, step = env.reset(keys)                    # keys[B]
    state, step = env.step(state, actions, keys)     # a reset row where the step before ended an episode
    """

    spec: EnvSpec
    reset: Callable[[Any], tuple[Tree, TimeStep]]
    step: Callable[[Tree, Any, Any], tuple[Tree, TimeStep]]


class RowState(NamedTuple):
    """What one row carries from step to step."""

    inner: Tree
    done: Any
    episode_return: Any
    episode_length: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tallied:
    """What a user's wrapper gets as the state of its environment: the state itself, and the task's return so far."""

    env: Tree
    episode_return: Any


def tally(env: JaxEnv) -> JaxEnv:
    """Sum the task's own rewards in the state, inside of wrappers that may change them."""

    def reset(key: Any) -> tuple[Tree, Tree]:
        state, obs = env.reset(key)
        return Tallied(state, jnp.zeros((), jnp.float32)), obs

    def step(state: Tallied, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        inner, step = env.step(state.env, action, key)
        return Tallied(inner, state.episode_return + jnp.asarray(step.reward, jnp.float32)), step

    mask = env.mask
    return env._replace(reset=reset, step=step, mask=mask and (lambda state: mask(state.env)))


def find_tally(state: Tree) -> Tallied | None:
    """The tally in the state of a wrapped environment; None where no user's wrapper is around it."""
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, Tallied))
    return next((part for part in parts if isinstance(part, Tallied)), None)


def vectorize(env: JaxEnv) -> BatchedJaxEnv:
    """Batch an environment and let it reset itself on the step after an end."""

    def look(state: RowState, obs: Tree, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
        mask = None if env.mask is None else env.mask(state.inner)
        episode = state.episode_return, state.episode_length, state.done
        return TimeStep(obs, reward, terminated, truncated, mask, *episode)

    def reset_row(key: Any) -> tuple[RowState, TimeStep]:
        inner, obs = jax.tree.map(strong, env.reset(key))
        no = jnp.zeros((), bool)
        state = RowState(inner, no, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        return state, look(state, obs, jnp.zeros((), jnp.float32), no, no)

    def step_row(state: RowState, action: Any, key: Any) -> tuple[RowState, TimeStep]:
        return autoreset_step(env, state, action, key, look)

    return BatchedJaxEnv(env.spec, jax.vmap(reset_row), jax.vmap(step_row))


def autoreset_step(
    env: JaxEnv, state: RowState, action: Any, key: Any, look: Callable[..., TimeStep]
) -> tuple[RowState, TimeStep]:
    """One step of one row, or its reset where the step before ended an episode.

    Both are computed, as vmap would anyway, and one is selected: so both may use the same key.
    """
    stepped, step = env.step(state.inner, clip_action(env.spec, action), key)
    fresh = jax.tree.map(strong, env.reset(key))
    ended = state.done
    inner, obs = jax.tree.map(lambda new, old: jnp.where(ended, new, like(old, new)), fresh, (stepped, step.obs))
    reward = jnp.where(ended, 0.0, jnp.asarray(step.reward, jnp.float32))
    terminated = jnp.asarray(step.terminated, bool)
    truncated = jnp.asarray(step.truncated, bool) & ~terminated & ~ended
    terminated = terminated & ~ended
    tallied = find_tally(inner)
    total = jnp.where(ended, 0.0, state.episode_return + reward) if tallied is None else tallied.episode_return
    length = jnp.where(ended, 0, state.episode_length + 1)
    state = RowState(inner, terminated | truncated, total, length)
    return state, look(state, obs, reward, terminated, truncated)


def clip_action(spec: EnvSpec, action: Any) -> Any:
    """Bring a continuous action within its bounds; others are left alone."""
    if not isinstance(spec.action, Box):
        return action
    low, high = (
        jnp.asarray(side, jnp.float32).reshape(spec.action.shape) for side in (spec.action.low, spec.action.high)
    )
    return jnp.clip(action, low, high)


def strong(leaf: Any) -> Any:
    """An array of a definite dtype: a Python number inside a state would change type in a scan."""
    array = jnp.asarray(leaf)
    return (
        array if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(array, array.dtype)
    )


def like(leaf: Any, other: Any) -> Any:
    """The leaf with the other's dtype."""
    array = jnp.asarray(leaf)
    return array if array.dtype == other.dtype else array.astype(other.dtype)


def time_limit(env: JaxEnv, limit: int) -> JaxEnv:
    """Truncate episodes after `limit` steps: `time_limit(env, 200)`."""

    def reset(key: Any) -> tuple[Tree, Tree]:
        inner, obs = env.reset(key)
        return (inner, jnp.zeros((), jnp.int32)), obs

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        inner, count = state
        inner, step = env.step(inner, action, key)
        late = jnp.logical_and(count + 1 >= limit, ~jnp.asarray(step.terminated, bool))
        return (inner, count + 1), step._replace(truncated=jnp.logical_or(step.truncated, late))

    return env._replace(reset=reset, step=step, mask=inner_mask(env))


def frame_stack(env: JaxEnv, count: int) -> JaxEnv:
    """The last `count` observations along the last axis; the first of an episode fills them all."""
    spec = env.spec

    def reset(key: Any) -> tuple[Tree, Tree]:
        inner, obs = env.reset(key)
        frames = map_spec(lambda part, x: jnp.concatenate([frame(part, x)] * count, axis=-1), spec.observation, obs)
        return (inner, frames), frames

    def push(part: Array, frames: Any, obs: Any) -> Any:
        new = frame(part, obs)
        return jnp.concatenate([frames[..., new.shape[-1] :], new.astype(frames.dtype)], axis=-1)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        inner, frames = state
        inner, step = env.step(inner, action, key)
        frames = map_spec(push, spec.observation, frames, step.obs)
        return (inner, frames), step._replace(obs=frames)

    stacked = replace(spec, observation=stack_spec(spec.observation, count))
    return JaxEnv(stacked, reset, step, inner_mask(env))


def action_repeat(env: JaxEnv, count: int) -> JaxEnv:
    """Play each action `count` times, or until the episode ends, and add up the rewards."""

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        first = jax.tree.map(strong, env.step(state, action, key))

        def again(carry: tuple[Tree, JaxStep], index: Any) -> tuple[tuple[Tree, JaxStep], None]:
            state, before = carry
            over = jnp.logical_or(before.terminated, before.truncated)
            later, after = env.step(state, action, jax.random.fold_in(key, index))
            after = after._replace(reward=before.reward + after.reward)
            return jax.tree.map(lambda old, new: jnp.where(over, old, like(new, old)), carry, (later, after)), None

        (state, result), _ = jax.lax.scan(again, first, jnp.arange(1, count))
        return state, result

    return env._replace(step=step)


def inner_mask(env: JaxEnv) -> Callable[[Tree], Any] | None:
    """The legal-action mask of an environment whose state is the first part of ours."""
    return None if env.mask is None else lambda state: env.mask(state[0])  # pyright: ignore[reportOptionalCall]


def frame(spec: Array, obs: Any) -> Any:
    """One observation with the axis that frames are stacked along."""
    return jnp.asarray(obs)[..., None] if grows_axis(spec) else jnp.asarray(obs)


def map_spec(function: Callable[..., Any], spec: Observation, *trees: Tree) -> Tree:
    """Apply to every array of observation trees, together with its spec."""
    if isinstance(spec, Mapping):
        return {key: map_spec(function, part, *(tree[key] for tree in trees)) for key, part in spec.items()}
    return function(spec, *trees)
