"""Fragments of many actors side by side: the batch that an update eats.

With staleness 0, a batch is one fragment of every slot, in order, all by the newest version: the same whoever
collected them. Else it is whatever comes first, and nobody waits for a slow actor: steps of its fragments that are
older than the staleness allows are left out, and counted.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from podium.core.types import Fragment
from podium.protocol.schema import Version
from podium.protocol.streams import Received, SampleReceiver
from podium.runs.accounting import Booking, LearnerAccount
from podium.workers.layout import Layouts, Record
from podium.workers.schedule import Schedule


@dataclass
class Batch:
    """A fragment [T, B] ready to be trained on, and what is owed for it."""

    fragment: Fragment
    bookings: list[Booking]
    releases: list[Callable[[], None]]
    episodes: list[tuple[float, int]]
    steps: int
    ages: np.ndarray  # in versions, of every valid step
    outcomes: np.ndarray | None  # metrics of the episodes, [n, k]


class Assembler:
    """Takes fragments of `slot` rows as they arrive, drops those that are too old, and puts the rest together.

    assembler = Assembler(receiver, account, layouts, slots=4, schedule=make_schedule(1), first=Version(0, 0))
    batch = assembler.next(timeout=0.2)        # for update 0, then for update 1, ...

    Fragments are copied once, into arrays that are the learner's own; a single slot's are trained on where they lie.
    """

    def __init__(
        self,
        receiver: SampleReceiver,
        account: LearnerAccount,
        layouts: Layouts,
        slots: int,
        schedule: Schedule,
        first: Version,
    ) -> None:
        self.receiver = receiver
        self.incarnation, self._update = first
        self._account = account
        self._layouts = layouts
        self._slots = slots
        self._schedule = schedule
        self._parts: dict[int, Received] = {}
        self._bookings: dict[int, Booking] = {}
        self._alone: Record  # of the only slot
        # One batch is trained on while the next one is put together.
        self._buffers = [_side_by_side(layouts, slots) for _ in range(2)] if slots > 1 else []

    def next(self, timeout: float, stop: Callable[[], bool] = lambda: False) -> Batch | None:
        """The batch of the next update; None if nothing came for `timeout` seconds: what has come so far is kept."""
        while len(self._parts) < self._slots:
            received = None if stop() else self.receiver.receive(timeout)
            if received is None:
                return None
            self._take(received)
        parts, bookings = list(self._parts.values()), list(self._bookings.values())
        record = self._alone if self._slots == 1 else self._buffers[0].record
        self._parts, self._bookings = {}, {}
        self._buffers.reverse()
        self._update += 1
        return self._finish(record, parts, bookings)

    def example(self) -> Fragment:
        """A batch of zeros, to compile with."""
        return _side_by_side(self._layouts, self._slots).record.fragment

    def _take(self, received: Received) -> None:
        """Put a fragment in its place, or book it as stale."""
        record: Record = self._layouts.record.tree(received.arrays)
        steps = int(np.count_nonzero(record.fragment.valid))
        sender, header = received.sender, received.header
        booking = Booking(f"{sender.worker}.{sender.incarnation}", header.sequence, steps, header.produced)
        if not self._account.arrive(booking):
            received.release()
            return
        place = self._schedule.place(header.slot, len(self._parts))
        old = record.fragment.valid & self._schedule.too_old(record.fragment.version, self._update)
        outlived = self._schedule.outlived(header.version, Version(self.incarnation, self._update))
        booking = booking._replace(stale=int(np.count_nonzero(old)))
        # A slot may have been taken, by an actor that was started again.
        if outlived or place in self._parts or 0 < steps == booking.stale:
            self._account.stale([booking])
            received.release()
            return
        if self._slots > 1:
            self._buffers[0].write(place, received.arrays)
            self._buffers[0].leave_out(place, old)
        else:
            self._alone = record._replace(fragment=record.fragment._replace(valid=record.fragment.valid & ~old))
        self._parts[place], self._bookings[place] = received, booking

    def _finish(self, record: Record, parts: list[Received], bookings: list[Booking]) -> Batch:
        fragment, episodes = record
        return Batch(
            fragment=fragment,
            bookings=bookings,
            releases=[part.release for part in parts],
            episodes=episodes.ended(),
            steps=sum(booking.steps - booking.stale for booking in bookings),
            # A learner that was restored may have fewer updates behind it than the policy that acted.
            ages=np.maximum(self._update - 1 - fragment.version[fragment.valid], 0),
            outcomes=episodes.outcomes(),
        )


@dataclass
class _SideBySide:
    """Arrays of a whole batch, and of each the columns of every slot."""

    record: Record
    columns: list[list[np.ndarray]]

    def write(self, place: int, arrays: list[np.ndarray]) -> None:
        for into, array in zip(self.columns[place], arrays, strict=True):
            np.copyto(into, array)

    def leave_out(self, place: int, steps: np.ndarray) -> None:
        """Outside losses and statistics, like reset rows; what comes after them is not touched."""
        rows = steps.shape[1]
        self.record.fragment.valid[:, place * rows : (place + 1) * rows] &= ~steps


def _side_by_side(layouts: Layouts, slots: int) -> _SideBySide:
    whole, columns = [], [[] for _ in range(slots)]
    for field in layouts.record.schema.fields:
        axis = field.rows_axis
        rows = field.shape[axis]
        array = np.zeros((*field.shape[:axis], rows * slots, *field.shape[axis + 1 :]), field.dtype)
        whole.append(array)
        for place, cut in enumerate(columns):
            picked = slice(place * rows, (place + 1) * rows)
            cut.append(array[picked] if axis == 0 else array[:, picked])
    return _SideBySide(layouts.record.tree(whole), columns)


class Prefetch:
    """Assembles the next batch in a thread while the present one is trained on.

    with Prefetch(assembler) as prefetch:
        batch = prefetch.next(timeout=1.0)
    """

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._condition = threading.Condition(threading.RLock())
        self._batch: Batch | None = None
        self._error: BaseException | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._stop = True
            self._condition.notify_all()
        self._thread.join(5.0)

    def wait(self, timeout: float) -> bool:
        """Whether there is a batch, or was within `timeout` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._batch is not None or self._error is not None, timeout)

    def next(self, timeout: float) -> Batch | None:
        """The next batch, or None after `timeout` seconds; what went wrong in the thread is raised here."""
        with self._condition:
            self.wait(timeout)
            if self._error is not None:
                raise self._error
            batch, self._batch = self._batch, None
            self._condition.notify_all()
            return batch

    def _run(self) -> None:
        try:
            while not self._stop:
                batch = self._assembler.next(0.2, lambda: self._stop)
                if batch is not None:
                    self._hand_over(batch)
        except BaseException as error:  # noqa: BLE001 - handed to the learner's thread, which raises it
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def _hand_over(self, batch: Batch) -> None:
        """Returns when it was taken: only then is the batch before it, whose arrays come next, done with."""
        with self._condition:
            self._batch = batch
            self._condition.notify_all()
            while self._batch is not None and not self._stop:
                self._condition.wait(0.2)
