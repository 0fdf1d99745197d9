"""Plays episodes with frozen parameters: greedy by default, normalisation not updated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Algorithm
from podium.core.errors import EndlessEpisodeError
from podium.core.types import ActInput, Tree
from podium.envs.interface import HostEnv
from podium.ops.random_keys import row_keys

MAX_STEPS = 200_000
"""An episode that has not ended by then never will."""


class PlayedEpisodes(NamedTuple):
    """Returns of the episodes played, their mean and its standard error."""

    mean: float
    stderr: float
    returns: list[float]
    lengths: list[int]


def evaluate(
    algorithm: Algorithm,
    params: Tree,
    env: HostEnv,
    key: jax.Array,
    greedy: bool = True,
    on_frame: Callable[[np.ndarray], None] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> PlayedEpisodes:
    """One episode of each of the environments, so that short episodes do not count more often.

    `on_frame` is given a picture of environment 0 at each of its steps; `on_step` is called at each step.

    Raises:
        EndlessEpisodeError: an episode has not ended after `MAX_STEPS`.
    """
    rows = env.num_rows
    act = jax.jit(
        lambda params, memory, obs, first, mask, key, step: algorithm.act(
            params, memory, ActInput(obs, first, mask, row_keys(key, jnp.arange(rows), step), jnp.ones(rows)), greedy
        )
    )
    memory, now = algorithm.memory(params, rows), env.reset()
    first, over, playing = (np.full(rows, flag) for flag in (True, False, True))
    returns, lengths = np.zeros(rows), np.zeros(rows, int)
    for step in range(MAX_STEPS):
        if on_frame is not None and playing[0]:
            on_frame(env.render())
        action, _, memory = act(params, memory, now.obs, first, now.mask, key, step)
        now = env.step(np.asarray(action))
        on_step()
        first, over = over, now.terminated | now.truncated
        ended = playing & now.episode_over
        returns[ended], lengths[ended] = now.episode_return[ended], now.episode_length[ended]
        playing &= ~ended
        if not playing.any():
            return _summarize(returns, lengths)
    raise EndlessEpisodeError(
        f"a greedy episode has not ended after {MAX_STEPS:,} steps; give env.wrappers a time_limit"
    )


def _summarize(returns: np.ndarray, lengths: np.ndarray) -> PlayedEpisodes:
    n = len(returns)
    stderr = float(np.std(returns, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return PlayedEpisodes(float(np.mean(returns)), stderr, returns.tolist(), lengths.tolist())


def single_act(algorithm: Algorithm) -> Callable[..., Any]:
    """`act` for a policy that is asked from outside, jitted: (params, memory, obs, first, mask, key, greedy)."""

    def act(params: Tree, memory: Tree, obs: Tree, first: Any, mask: Any, key: Any, greedy: bool) -> Any:
        return algorithm.act(params, memory, ActInput(obs, first, mask, key, jnp.ones(first.shape)), greedy)

    return jax.jit(act, static_argnames="greedy")
