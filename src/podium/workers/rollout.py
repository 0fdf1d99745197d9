"""One fragment of a JAX environment, collected inside XLA."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.algorithms.algorithm import Algorithm
from podium.core.types import ActInput, Fragment, Tree
from podium.envs.jax_wrappers import BatchedJaxEnv
from podium.ops.random_keys import row_keys


class RolloutRows(NamedTuple):
    """Where the B rows of some environments stand between two steps."""

    env: Tree
    obs: Tree
    mask: jax.Array | None
    first: jax.Array  # obs starts an episode
    over: jax.Array  # obs ended one: the next step is a reset row
    memory: Tree
    discounted: jax.Array
    row_id: jax.Array  # global, so that noise does not depend on the device a row is on


class EpisodeEnds(NamedTuple):
    """Which steps ended an episode, and its return and length."""

    over: Any  # bool[T, B]
    returns: Any
    lengths: Any


def start(algorithm: Algorithm, env: BatchedJaxEnv, params: Tree, key: jax.Array, num_envs: int) -> RolloutRows:
    """RolloutRows at the first observation of their first episode."""
    rows = env.spec.rows(num_envs)
    state, step = env.reset(row_keys(key, jnp.arange(num_envs), 0))
    return RolloutRows(
        env=state,
        obs=step.obs,
        mask=step.mask,
        first=jnp.ones(rows, bool),
        over=jnp.zeros(rows, bool),
        memory=algorithm.memory(params, rows),
        discounted=jnp.zeros(rows),
        row_id=jnp.arange(rows),
    )


def collect(
    algorithm: Algorithm,
    env: BatchedJaxEnv,
    params: Tree,
    rows: RolloutRows,
    key: jax.Array,
    update: jax.Array,
    num_envs: int,
) -> tuple[RolloutRows, Fragment, EpisodeEnds]:
    """T steps of every row, of `num_envs` environments in the run, with one version of the parameters."""
    experience = algorithm.rollouts
    length, discount = experience.length, experience.discount
    # All keys of the fragment at once: threefry in the scan would cost more than the policy.
    steps = 1 + update * length + jnp.arange(length)
    act_key, env_key = jax.random.split(key)
    env_id = rows.row_id // len(env.spec.agents)  # of each row
    act_keys = jax.vmap(lambda step: row_keys(act_key, rows.row_id, step))(steps)
    env_keys = jax.vmap(lambda step: row_keys(env_key, env_id[:: len(env.spec.agents)], step))(steps)
    exploration = experience.exploration(env_id, num_envs)

    def advance(rows: RolloutRows, keys: tuple[jax.Array, jax.Array]) -> tuple[RolloutRows, tuple]:
        act_key, env_key = keys
        inputs = ActInput(rows.obs, rows.first, rows.mask, act_key, exploration)
        action, extras, memory = algorithm.act(params, rows.memory, inputs, False)
        state, step = env.step(rows.env, action, env_key)
        discounted = step.reward + discount * jnp.where(rows.first, 0.0, rows.discounted)
        after = RolloutRows(
            env=state,
            obs=step.obs,
            mask=step.mask,
            first=rows.over,
            over=step.terminated | step.truncated,
            memory=memory,
            discounted=discounted,
            row_id=rows.row_id,
        )
        seen = (rows.obs, rows.first, rows.mask, action, extras, step.reward, discounted)
        ended = (step.terminated, step.truncated, ~rows.over)
        return after, (seen, ended, EpisodeEnds(step.episode_over, step.episode_return, step.episode_length))

    after, (seen, ended, episodes) = jax.lax.scan(advance, rows, (act_keys, env_keys))
    obs, first, mask, action, extras, reward, discounted = seen
    terminated, truncated, valid = ended

    def with_last(xs: Tree, last: Tree) -> Tree:
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), xs, last)

    fragment = Fragment(
        obs=with_last(obs, after.obs),
        first=with_last(first, after.first),
        mask=with_last(mask, after.mask),
        action=action,
        extras=extras,
        reward=reward,
        discounted=discounted,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        version=jnp.full(valid.shape, update, jnp.int32),
        memory=rows.memory,
    )
    return after, fragment, episodes
