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
from podium.algorithms.algorithm import Drawn, Replay
from podium.core.types import Fragment
from podium.workers.layout import Episodes, Layout, Layouts, make_layout


class Judged(NamedTuple):
    """Of each row that the learner had: where it lay, when it was drawn, and its new priority."""

    index: Any  # int32; -1: there was none
    added: Any  # int32: fragments that the shard had added by then
    priority: Any  # float32


class Given(NamedTuple):
    """Of each row for the learner: what was drawn (rows first), where, when; and beside them episodes that ended."""

    drawn: Drawn
    index: Any
    added: Any
    episodes: Episodes  # a length of 0: none


@dataclass(frozen=True)
class ReplayLayouts:
    """Both of one row."""

    request: Layout
    answer: Layout


def make_replay_layouts(experience: Replay, layouts: Layouts) -> ReplayLayouts:
    """For fragments of the slots of `layouts`; traces, computes nothing."""
    fragment = layouts.record.tree(layouts.record.schema.fields).fragment

    def draw(key: jax.Array) -> Drawn:
        drawn, _ = replay.draw(experience, replay.init(experience, fragment), key, 1)
        return rows_first(drawn)

    drawn = jax.eval_shape(draw, jax.random.key(0))
    drawn = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), drawn)
    integer, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.int32, np.float32))
    return ReplayLayouts(
        request=make_layout(Judged(integer, integer, number)),
        answer=make_layout(Given(drawn, integer, integer, Episodes(number, integer))),
    )


def rows_first(drawn: Drawn) -> Drawn:
    """[T, b, ...] to [b, T, ...], where rows are sequences."""
    return _swap(drawn, 0, 1)


def time_first(drawn: Drawn) -> Drawn:
    """Batches [K, b, ...] as updates eat them: [K, T, b, ...], where rows are sequences."""
    return _swap(drawn, 1, 2)


def _swap(drawn: Drawn, a: int, b: int) -> Drawn:
    rows = drawn.rows
    if not isinstance(rows, Fragment):
        return drawn
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, a, b), rows._replace(memory=()))
    return drawn._replace(rows=swapped._replace(memory=rows.memory))
