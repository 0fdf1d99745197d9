"""Observations normalised for algorithms that learn from replay: by the statistics of what was put into the buffer.

The buffer holds observations as they came; they are normalised when they are drawn and when the policy acts. So an old
row is seen as a new one would be, and an algorithm need not know of it.
"""

from typing import Any, NamedTuple

import jax

from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.core.specs import EnvSpec
from podium.core.types import ActInput, Fragment, Tree
from podium.ops import statistics
from podium.ops.statistics import RunningStatistics


class NormalizedState(NamedTuple):
    """An algorithm's own state, and the statistics of the observations it was given."""

    train: Tree
    observations: RunningStatistics


class NormalizedParams(NamedTuple):
    """What actors need."""

    params: Tree
    observations: RunningStatistics


def normalize_observations(algorithm: Algorithm) -> Algorithm:
    """The algorithm, with observations of mean 0 and variance 1."""

    def init(key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> NormalizedState:
        return NormalizedState(algorithm.init(key, spec, hyper), statistics.init(spec.observation, pictures=True))

    def params(state: NormalizedState) -> NormalizedParams:
        return NormalizedParams(algorithm.params(state.train), state.observations)

    def memory(params: NormalizedParams, batch: int) -> Tree:
        return algorithm.memory(params.params, batch)

    def act(params: NormalizedParams, memory: Tree, inputs: ActInput, greedy: bool) -> tuple:
        obs = statistics.normalize(params.observations, inputs.obs)
        return algorithm.act(params.params, memory, inputs._replace(obs=obs), greedy)

    def update(state: NormalizedState, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rows = _normalize_rows(state.observations, batch.rows)
        train, metrics, feedback = algorithm.update(state.train, batch._replace(rows=rows), key, axis)
        return state._replace(train=train), metrics, feedback

    def observe(state: NormalizedState, fragment: Fragment, axis: str | None = None) -> NormalizedState:
        seen = jax.tree.map(lambda x: x[:-1], fragment.obs)
        return state._replace(observations=statistics.update(state.observations, seen, fragment.valid, axis))

    return algorithm._replace(init=init, params=params, memory=memory, act=act, update=update, observe=observe)


def _normalize_rows(observations: RunningStatistics, rows: Transitions | Fragment) -> Any:
    obs = statistics.normalize(observations, rows.obs)
    if isinstance(rows, Fragment):
        return rows._replace(obs=obs)
    return rows._replace(obs=obs, next_obs=statistics.normalize(observations, rows.next_obs))
