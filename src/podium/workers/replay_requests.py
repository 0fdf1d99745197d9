"""What a learner asks its replay workers for: rows of every shard, two requests ahead.

While the learner trains on the rows of one request, the shards draw those of the next, and what they have drawn goes
to the device. So much is in flight, and no more: a round of updates is cut into requests of some megabytes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from podium.core.types import Tree
from podium.protocol.schema import Version
from podium.protocol.streams import InferenceClient
from podium.workers.replay_layout import TURNS, Given, Judged, ReplayLayouts

CALL_S = 0.2
"""After so long without rows, `reconnect` is called."""


class Asked(NamedTuple):
    """The size of a request: rows of one shard for each of so many updates."""

    updates: int
    rows: int


class Taken(NamedTuple):
    """What all shards gave for one request, each with its incarnation and the steps it had taken in by then."""

    batches: Tree  # (rows, shares), [updates, batch, ...] each, on the device
    given: list[Given]  # the same on the host, and what else came; valid until `judge`
    told: list[Version]


@dataclass
class _Turn:
    """One of the requests that are out."""

    given: list[Given | None]
    told: list[Version | None]
    batches: Tree | None = None


class ReplayRequests:
    """A learner's end towards all shards.

    requests.start()
    if (taken := requests.take(timeout=1.0)) is not None:
        ...                                              # start to train on taken.batches
        requests.prefetch(timeout=0.01)                  # the next, meanwhile
        requests.judge(taken, priorities)                # which asks for more

    A shard that comes back empty makes it wait: `reconnect` is called meanwhile, and may rebind a client to it.
    """

    def __init__(
        self,
        layouts: ReplayLayouts,
        clients: Sequence[InferenceClient],
        asked: Asked,
        reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self.failed = 0
        self._layouts, self._clients, self._asked, self._reconnect = layouts, list(clients), asked, reconnect
        self._turns = [self._empty() for _ in range(TURNS)]
        self._number = 0  # of the request that is trained on next
        self._followed_at = time.monotonic()

    def start(self) -> None:
        """Ask for the first rows."""
        for turn in range(TURNS):
            for client in self._clients:
                client.submit(turn, self._nothing())

    def example(self) -> Tree:
        """Batches of zeros, to compile with."""
        rows = self._asked.updates * self._asked.rows
        fields = self._layouts.answer.schema.fields
        given = self._layouts.answer.tree([np.zeros((rows, *field.shape), field.dtype) for field in fields])
        return jax.device_put(self._join([given] * len(self._clients)))

    def wait(self, timeout: float) -> bool:
        """Whether every shard has given its rows for the next request, or had within `timeout` seconds."""
        turn, deadline = self._turns[self._number % TURNS], time.monotonic() + timeout
        while None in turn.told:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._poll(min(left, CALL_S), turn.told.index(None))
            if time.monotonic() - self._followed_at > CALL_S:
                self._reconnect()
                self._followed_at = time.monotonic()
        return True

    def take(self, timeout: float) -> Taken | None:
        """The rows of the next request, or None if they are not all there after `timeout` seconds."""
        if not self.wait(timeout):
            return None
        turn = self._turns[self._number % TURNS]
        batches = self._send_on(turn)
        given = [part for part in turn.given if part is not None]
        return Taken(batches, given, [version for version in turn.told if version is not None])

    def prefetch(self, timeout: float) -> bool:
        """Whether the rows of the request after the one that was taken are on the device, or on their way there."""
        turn = self._turns[(self._number + 1) % TURNS]
        if None in turn.told:
            self._poll(timeout, turn.told.index(None))
        if None in turn.told:
            return False
        self._send_on(turn)
        return True

    def judge(self, taken: Taken, priorities: Tree) -> None:
        """Tell every shard the priorities of the rows it gave, or () where there are none, and ask for others."""
        number, self._number = self._number % TURNS, self._number + 1
        self._turns[number] = self._empty()
        updates, rows = self._asked
        shape = updates, len(self._clients), rows
        none = isinstance(priorities, tuple)
        judged = np.zeros(shape, np.float32) if none else np.asarray(priorities, np.float32).reshape(shape)
        for i, (client, part, version) in enumerate(zip(self._clients, taken.given, taken.told, strict=True)):
            priority = np.ascontiguousarray(judged[:, i]).reshape(updates * rows)
            incarnation = np.full(updates * rows, version.incarnation, np.int32)
            # Copies: the arrays of a reply are the client's again once the next request is out.
            client.submit(number, list(Judged(incarnation, np.array(part.index), np.array(part.added), priority)))

    def _poll(self, timeout: float, waiting: int = 0) -> None:
        """Take what has come; wait for the shard `waiting` only."""
        for shard, client in enumerate(self._clients):
            for number, version, arrays in client.poll(timeout if shard == waiting else 0.0):
                if arrays is None:  # the shard has died: the next incarnation of it is asked
                    self.failed += 1
                    client.submit(number, self._nothing())
                else:
                    turn = self._turns[number]
                    turn.given[shard], turn.told[shard] = self._layouts.answer.tree(arrays), version

    def _send_on(self, turn: _Turn) -> Tree:
        if turn.batches is None:
            turn.batches = jax.device_put(self._join([part for part in turn.given if part is not None]))
        return turn.batches

    def _join(self, given: Sequence[Given]) -> Tree:
        """The rows of all shards as batches [updates, batch, ...], and the share that each has in its shard."""
        updates, rows = self._asked
        drawn = [(part.rows, part.share) for part in given]
        cut = [jax.tree.map(lambda x: np.asarray(x).reshape(updates, rows, *x.shape[1:]), part) for part in drawn]
        if len(cut) == 1:
            return cut[0]
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *cut)

    def _empty(self) -> _Turn:
        return _Turn([None] * len(self._clients), [None] * len(self._clients))

    def _nothing(self) -> list[Any]:
        """The judgement of no rows."""
        zeros = np.zeros(self._asked.updates * self._asked.rows, np.int32)
        return list(Judged(zeros - 1, zeros, zeros, zeros.astype(np.float32)))
