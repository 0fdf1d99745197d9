"""The learner's end of a sample stream over shared memory: a rendezvous where it waits for any of its senders'
rings."""

import secrets
import threading
from collections import deque
from functools import partial
from pathlib import Path

import msgspec

from podium.core.errors import MalformedSegmentError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.futex import order
from podium.protocol.shm.rendezvous import Rendezvous, endpoint_of
from podium.protocol.shm.ring import OTHER_SCHEMA, REPLACED, Ring, attach_ring, ring_senders
from podium.protocol.shm.segment import FieldText, attach, create, schema_of, schema_text
from podium.protocol.streams import Counters, Received, SampleReceiver

DOOR = "samples.rendezvous"
RECEIVER = "samples.receiver"  # the schema that the receiver takes, written by each receiver as it comes


class ReceiverText(msgspec.Struct, frozen=True):
    """What a receiver says of itself."""

    schema: tuple[FieldText, ...]


def write_receiver_schema(directory: Path, schema: Schema) -> None:
    """Say what we take: a sender with another schema learns at once in what it differs."""
    segment = create(directory / f"{RECEIVER}-{secrets.token_hex(6)}", ReceiverText(schema_text(schema)), 0)
    segment.path.replace(directory / RECEIVER)


def receiver_schema(directory: Path) -> Schema | None:
    """What the receiver takes; None if none has come yet."""
    try:
        return schema_of(attach(directory / RECEIVER).describe(ReceiverText).schema)
    except FileNotFoundError:
        return None


class Intake:
    """A ring as the receiver sees it: what it will take next, and what it holds."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.leaving = False
        self.position = ring.tail[0]
        order()
        states = [(state - 1, index) for index, state in enumerate(ring.states) if 0 < state <= self.position]
        self.again = deque(sorted(states))  # committed before we came, not released by whoever was here before

    def waiting(self) -> int:
        """How many fragments can be taken."""
        return len(self.again) + self.ring.tail[0] - self.position

    def in_use(self) -> bool:
        """Whether something that was committed is not released yet. A sender killed as it committed has not done so."""
        tail = self.ring.tail[0]
        order()
        return any(0 < state <= tail for state in self.ring.states)

    def take(self) -> tuple[int, int] | None:
        """Place and buffer of the next fragment."""
        if self.again:
            return self.again.popleft()
        position, ring = self.position, self.ring
        if ring.tail[0] <= position:
            return None
        order()
        self.position = position + 1
        return position, ring.queue[position % ring.credits]


class ShmSampleReceiver(SampleReceiver):
    """The learner's end: takes from each ring in turn, and removes those that are left and empty.

    Who has come and who has left is looked at under a lock, by whichever thread notices first. The list of rings is
    replaced, never changed, so the thread that receives goes through it without one.
    """

    def __init__(self, directory: Path, schema: Schema) -> None:
        self.endpoint = endpoint_of(directory)
        self.counters = Counters()
        self._directory = directory
        self._schema = schema
        self._intakes: list[Intake] = []
        self._newest: dict[int, int] = {}  # incarnation of each worker
        self._unreadable: set[SenderId] = set()
        self._turn = 0
        self._closed = False
        self._lock = threading.Lock()
        self._joins: int | None = None
        write_receiver_schema(directory, schema)
        self._rendezvous = Rendezvous(directory / DOOR)
        self._look()

    def receive(self, timeout: float) -> Received | None:
        """The next fragment of whoever's turn it is."""
        return self._rendezvous.wakeup.wait(self._take, timeout)

    def _take(self) -> Received | None:
        """The next fragment that is there."""
        if self._closed:
            return None
        if self._rendezvous.joins[0] != self._joins:
            self._look()
        intakes = self._intakes
        for place in range(self._turn, self._turn + len(intakes)):
            intake = intakes[place % len(intakes)]
            while (taken := intake.take()) is not None:
                self._turn = place + 1
                if (received := self._open(intake, *taken)) is not None:
                    return received
        self._turn %= max(1, len(intakes))
        return None

    def _open(self, intake: Intake, position: int, index: int) -> Received | None:
        """The fragment of a buffer; None, counted, if what the ring says of it makes no sense: its credit goes back."""
        ring = intake.ring
        if not 0 <= index < ring.credits or ring.states[index] != position + 1:  # queue and states do not agree
            self.counters.malformed += 1
            for buffer, state in enumerate(ring.states):
                if state == position + 1:  # whatever the queue says, it is this one that was committed
                    self._release(intake, position, buffer)
            return None
        self.counters.received += 1
        release = partial(self._release, intake, position, index)
        return Received(ring.sender, ring.read_header(index), ring.arrays[index], release)

    def _release(self, intake: Intake, position: int, index: int) -> None:
        """Give the buffer back. After `close` it is not ours to give: whoever comes next receives it again."""
        ring = intake.ring
        if self._closed or ring.states[index] != position + 1:
            return
        order()
        ring.states[index] = 0
        ring.wakeup.wake()
        if intake.leaving:
            with self._lock:
                self._remove_empty()

    def _look(self) -> None:
        """Look who has come and who has left, unless another thread just has."""
        with self._lock:
            if self._rendezvous.joins[0] != self._joins and not self._closed:
                self._scan()

    def _scan(self) -> None:
        """Under the lock."""
        self._joins = self._rendezvous.joins[0]
        order()
        known = {intake.ring.sender for intake in self._intakes} | self._unreadable
        for sender in ring_senders(self._directory):
            if sender not in known:
                self._welcome(sender)
        for intake in self._intakes:
            if intake.ring.closed[0]:
                intake.leaving = True
            elif intake.ring.sender.incarnation < self._newest[intake.ring.sender.worker]:
                self._replace(intake)
        self._remove_empty()

    def _welcome(self, sender: SenderId) -> None:
        """Take a new sender in, unless its schema is another."""
        try:
            ring = attach_ring(self._directory, sender)
        except FileNotFoundError:
            return
        except MalformedSegmentError:
            self._unreadable.add(sender)
            self.counters.malformed += 1
            return
        if self._schema.difference(ring.schema):
            ring.refuse(OTHER_SCHEMA)
            ring.segment.unlink()
            self.counters.refused += 1
            return
        self._newest[sender.worker] = max(sender.incarnation, self._newest.get(sender.worker, -1))
        self._intakes = [*self._intakes, Intake(ring)]

    def _replace(self, intake: Intake) -> None:
        """No more of this sender, which has a newer incarnation; what it has committed is still taken."""
        if not intake.leaving:
            intake.leaving = True
            intake.ring.refuse(REPLACED)
            self.counters.refused += 1

    def _remove_empty(self) -> None:
        """Forget the rings that nobody writes to any more, once all of theirs is released.

        A sender that was taken for dead and is not may just be committing one more: that one is lost with it.
        """
        done = [intake for intake in self._intakes if intake.leaving and not intake.in_use()]
        for intake in done:
            intake.ring.segment.unlink()
        if done:
            self._intakes = [intake for intake in self._intakes if intake not in done]

    def senders(self) -> dict[SenderId, int]:
        """Who has a ring, and how many fragments wait in it."""
        if self._rendezvous.joins[0] != self._joins:
            self._look()
        return {intake.ring.sender: intake.waiting() for intake in self._intakes}

    def close(self) -> None:
        """Leave all as it is, for the next receiver. Arrays that are held stay mapped as long as they are used."""
        with self._lock:
            self._closed = True
            self._intakes = []
