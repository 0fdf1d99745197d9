"""The replay worker: a shard of the past. Actors send it fragments, the learner asks it for rows.

Neither runs away from the other: the shard takes no fragment beyond the updates that were drawn for those before,
and gives no rows beyond the fragments that have come. Its actors then wait for credit, its learner for data.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms import replay
from podium.algorithms.algorithm import Replay
from podium.core.types import Fragment
from podium.protocol.schema import Version
from podium.protocol.streams import InferenceServer, Received, RequestBatch, SampleReceiver
from podium.runs.accounting import Booking, LearnerAccount
from podium.workers.layout import Episodes, Layouts, Record
from podium.workers.replay_layout import TURNS, Acted, Given, Judged, ReplayLayouts, rows_first

WAIT_S = 0.1
"""How long it waits for fragments, requests or leave before it looks whether it should stop."""
BEAT_S = 1.0
"""How often `beat` is called."""


@dataclass(frozen=True)
class Share:
    """What one shard of several has to do for each request of the learner, which is a part of a round of updates."""

    steps: float  # that belong to a request; reset rows are none
    starts: int  # steps before the first request
    ahead: int  # requests that actors may be ahead of the learner
    updates: int
    rows: int  # for each update


class ReplayWorker:
    """Takes in fragments in one thread, and gives rows in another.

    worker = ReplayWorker(experience, layouts, replay_layouts, receiver, server, account, share, key, incarnation)
    worker.warm_up()
    worker.run(stop)

    The version of a reply is (incarnation, valid steps taken in so far). `beat` is given the metrics about once a
    second. Nothing that it was given is closed.
    """

    def __init__(
        self,
        experience: Replay,
        layouts: Layouts,
        replay_layouts: ReplayLayouts,
        receiver: SampleReceiver,
        server: InferenceServer,
        account: LearnerAccount,
        share: Share,
        key: jax.Array,
        incarnation: int,
        beat: Callable[[dict[str, float]], None] = lambda metrics: None,
    ) -> None:
        self._layouts, self._replay_layouts = layouts, replay_layouts
        self._receiver, self._server, self._account = receiver, server, account
        self._share, self._incarnation, self._beat = share, incarnation, beat
        self._add = jax.jit(lambda buffer, fragment: replay.add(experience, buffer, fragment), donate_argnums=0)
        self._judge = jax.jit(lambda buffer, judged: _judge(experience, buffer, judged, incarnation), donate_argnums=0)
        self._key = key
        self._draw = jax.jit(
            lambda buffer, key, number: _draw(experience, buffer, share, jax.random.fold_in(key, number))
        )
        self._buffer = jax.jit(lambda: replay.init(experience, self._example()))()
        self._moved = threading.Condition()  # guards the buffer and the counts
        self._episodes: deque[tuple[tuple[float, int], np.ndarray | None]] = deque(maxlen=100_000)
        self._acted: Counter[int] = Counter()  # valid steps by version, that were not told of
        self._fragments = self._steps = 0
        self._drawn = 0  # requests that were answered
        self._trained = 0  # of them, those whose rows the learner has judged
        self._kept = 0  # of them, those that were trained on, or may yet be
        self._told = time.monotonic()
        self._waited = {"data": 0.0, "request": 0.0, "credit": 0.0}
        self._error: BaseException | None = None

    def warm_up(self) -> None:
        """Compile everything; nothing is run, and no buffer copied."""
        fragment = self._layouts.record.tree(self._layouts.record.schema.allocate()).fragment
        self._add.lower(self._buffer, fragment).compile()
        self._draw.lower(self._buffer, self._key, self._drawn).compile()
        rows = self._share.updates * self._share.rows
        fields = self._replay_layouts.request.schema.fields
        judged = self._replay_layouts.request.tree([np.zeros((rows, *field.shape), field.dtype) for field in fields])
        self._judge.lower(self._buffer, judged).compile()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or a stream fails."""
        taking = threading.Thread(target=self._take_in, args=(stop,), name="take-in", daemon=True)
        taking.start()
        while not stop.is_set() and self._error is None:
            began = time.monotonic()
            batch = self._server.gather(self._share.updates * self._share.rows, 0.0, WAIT_S)
            self._waited["request"] += time.monotonic() - began
            if batch is not None:
                self._answer(batch, stop)
            self._tell()
        taking.join(10.0)
        if self._error is not None:
            raise self._error

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and how full the buffer is."""
        size = self._buffer.fragments.valid.shape[0]
        return {
            "steps": self._steps,
            "fragments": self._fragments,
            "batches": self._drawn,
            "fill": min(1.0, self._fragments / size),
            "refused": self._receiver.counters.refused + self._server.counters.refused,
            "malformed": self._receiver.counters.malformed + self._server.counters.malformed,
            **{f"{what}_wait_s": seconds for what, seconds in self._waited.items()},
        }

    def _tell(self) -> None:
        """Show that it is alive, also while it waits for fragments."""
        if time.monotonic() - self._told > BEAT_S:
            self._beat(self.metrics())
            self._told = time.monotonic()

    def _take_in(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set() and self._error is None:
                began = time.monotonic()
                with self._moved:
                    free = self._moved.wait_for(self._may_take, WAIT_S)
                waited = time.monotonic()
                self._waited["credit"] += waited - began
                received = self._receiver.receive(WAIT_S) if free else None
                self._waited["data"] += time.monotonic() - waited
                if received is not None:
                    self._take(received)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that runs the worker, which raises it
            self._error = error

    def _may_take(self) -> bool:
        share = self._share
        return self._steps < share.starts + (self._kept + share.ahead) * share.steps

    def _may_give(self) -> bool:
        share = self._share
        return self._steps >= max(1, share.starts + self._kept * share.steps)

    def _take(self, received: Received) -> None:
        """Add a fragment, unless it was added by an incarnation before this one."""
        record: Record = self._layouts.record.tree(received.arrays)
        fragment = record.fragment
        sender, header = received.sender, received.header
        steps = int(np.count_nonzero(fragment.valid))
        booking = Booking(f"{sender.worker}.{sender.incarnation}", header.sequence, steps, header.produced)
        if self._account.arrive(booking):
            ended, outcomes, acted = record.episodes.ended(), record.episodes.outcomes(), _acted(record)
            with self._moved:
                self._buffer = jax.block_until_ready(self._add(self._buffer, fragment))
                self._account.trained([booking])
                self._fragments += 1
                self._steps += steps
                self._episodes.extend(zip(ended, repeat(None) if outcomes is None else outcomes, strict=False))
                self._acted.update(acted)
                self._moved.notify_all()
        received.release()

    def _answer(self, batch: RequestBatch, stop: threading.Event) -> None:
        """Put the priorities in, draw, and reply, as soon as there are fragments enough."""
        judged: Judged = self._replay_layouts.request.tree([array[: batch.rows] for array in batch.arrays])
        with self._moved:
            self._buffer = self._judge(self._buffer, judged)
            self._count_kept(judged)
            while not self._moved.wait_for(self._may_give, WAIT_S):
                self._tell()
                if stop.is_set() or self._error is not None:
                    return
            rows, shares, index, added = jax.block_until_ready(self._draw(self._buffer, self._key, self._drawn))
            version = Version(self._incarnation, self._steps)
            news = self._next_episodes(batch.rows), self._next_acted(batch.rows)
            self._drawn += 1
            self._kept += 1
            self._moved.notify_all()
        given = Given(rows, shares, index, added, *news)
        self._server.reply(batch, version, self._replay_layouts.answer.arrays(given))

    def _count_kept(self, judged: Judged) -> None:
        """Leave out the answers that a learner took into its death.

        Who asks has nothing of ours but what he judges now, and what he was given for his other requests: whatever
        was drawn beyond that will never be trained on.
        """
        self._trained += int(judged.incarnation[0] == self._incarnation)
        self._kept = min(self._kept, self._trained + TURNS - 1)

    def _next_episodes(self, rows: int) -> Episodes:
        """Of those that ended and were not told of, as many as there are rows."""
        fields = self._replay_layouts.answer.tree(self._replay_layouts.answer.schema.fields).episodes
        episodes: Episodes = jax.tree.map(lambda field: np.zeros((rows, *field.shape), field.dtype), fields)
        for i in range(min(rows, len(self._episodes))):
            (episodes.returns[i], episodes.lengths[i]), outcome = self._episodes.popleft()
            if outcome is not None:
                episodes.metrics[i] = outcome
        return episodes

    def _next_acted(self, rows: int) -> Acted:
        """Of the steps that were not told of, those of the oldest versions, as many as there are rows."""
        acted = Acted(np.zeros(rows, np.int32), np.zeros(rows, np.int32))
        for i, version in enumerate(sorted(self._acted)[:rows]):
            acted.version[i], acted.steps[i] = version, self._acted.pop(version)
        return acted

    def _example(self) -> Fragment:
        return self._layouts.record.tree(self._layouts.record.schema.fields).fragment


def _acted(record: Record) -> dict[int, int]:
    versions, steps = np.unique(record.fragment.version[record.fragment.valid], return_counts=True)
    return dict(zip(versions.tolist(), steps.tolist(), strict=True))


def _draw(experience: Replay, buffer: replay.ReplayBuffer, share: Share, key: jax.Array) -> tuple:
    """Of all updates of a request one after another: rows, P(i), places, and how many fragments had been added."""

    def draw(key: jax.Array) -> tuple:
        rows, shares, index = replay.draw_shares(experience, buffer, key, share.rows)
        return rows_first(rows), shares, index

    drawn = jax.vmap(draw)(jax.random.split(key, share.updates))
    rows, shares, index = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), drawn)
    return rows, shares, index, jnp.full(index.shape, buffer.added)


def _judge(experience: Replay, buffer: replay.ReplayBuffer, judged: Judged, incarnation: int) -> replay.ReplayBuffer:
    """New priorities of rows that this incarnation drew, but for those whose place a newer fragment took."""
    size = buffer.fragments.valid.shape[0]
    newer = buffer.added - judged.added
    number = judged.index // replay.rows_per_fragment(experience, buffer)
    # Counted from where the next fragment would have gone when the rows were drawn.
    overwritten = (number - judged.added) % size < newer
    known = (judged.incarnation == incarnation) & ~overwritten
    return replay.reprioritize(experience, buffer, judged.index, judged.priority, known)
