"""What passes between a learner and a replay worker: rows drawn, and the errors that come back for them.

It is an inference stream, asked the other way round: the learner's request holds the priorities of the rows that it
had before, the reply the next rows. So each shard keeps its own buffer, and nobody waits for a server in between.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms import replay
from podium.algorithms.algorithm import Replay, Transitions
from podium.core.types import Fragment
from podium.workers.layout import Episodes, Layout, Layouts, make_layout

TURNS = 2
"""Requests that a learner has out at each shard."""


class Judged(NamedTuple):
    """Of each row that the learner had: which shard gave it, where it lay, when it was drawn, and its new priority."""

    incarnation: Any  # int32: of the shard; -1: there was no row
    index: Any  # int32
    added: Any  # int32: fragments that the shard had added by then
    priority: Any  # float32


class Acted(NamedTuple):
    """Valid steps that a shard took in, by the version of the policy that acted."""

    version: Any  # int32
    steps: Any  # int32; 0: none


class Given(NamedTuple):
    """Of each row for the learner: what was drawn (rows first), where, when; and beside them what is new."""

    rows: Transitions | Fragment
    share: Any  # float32: P(i) in its shard, which is weighed when all shards' are together
    index: Any
    added: Any
    episodes: Episodes  # a length of 0: none
    acted: Acted


@dataclass(frozen=True)
class ReplayLayouts:
    """Both of one row."""

    request: Layout
    answer: Layout


def make_replay_layouts(experience: Replay, layouts: Layouts) -> ReplayLayouts:
    """For fragments of the slots of `layouts`; traces, computes nothing."""
    fragment, episodes = layouts.record.tree(layouts.record.schema.fields)

    def draw(key: jax.Array) -> Transitions | Fragment:
        return rows_first(replay.draw_shares(experience, replay.init(experience, fragment), key, 1)[0])

    rows = jax.eval_shape(draw, jax.random.key(0))
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    integer, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.int32, np.float32))
    metrics = None if episodes.metrics is None else jax.ShapeDtypeStruct(episodes.metrics.shape[-1:], np.float32)
    ended = Episodes(number, integer, metrics)
    return ReplayLayouts(
        request=make_layout(Judged(integer, integer, integer, number)),
        answer=make_layout(Given(rows, number, integer, integer, ended, Acted(integer, integer))),
    )


def rows_first(rows: Transitions | Fragment) -> Transitions | Fragment:
    """[T, b, ...] to [b, T, ...], where rows are sequences."""
    return _swap(rows, 0, 1)


def time_first(rows: Transitions | Fragment) -> Transitions | Fragment:
    """Batches [K, b, ...] as updates eat them: [K, T, b, ...], where rows are sequences."""
    return _swap(rows, 1, 2)


def _swap(rows: Transitions | Fragment, a: int, b: int) -> Transitions | Fragment:
    if not isinstance(rows, Fragment):
        return rows
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, a, b), rows._replace(memory=()))
    return swapped._replace(memory=rows.memory)
