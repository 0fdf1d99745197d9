"""Sample streams between threads: the receiver is given the very arrays that the sender has filled."""

import threading
from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np

from podium.core.errors import RefusedError, StreamError
from podium.protocol.memory.waiting import wait_for
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Buffer, Counters, FragmentHeader, Received, SampleReceiver, SampleSender


class QueuedFragment(NamedTuple):
    """A committed fragment; `position` is its place in the order of commits."""

    position: int
    buffer: int
    header: FragmentHeader


class BufferRing:
    """One sender's buffers: each is free, out at the sender, queued, or held by the receiver."""

    def __init__(self, schema: Schema, sender: SenderId, credits: int) -> None:
        self.schema = schema
        self.sender = sender
        self.arrays: list[list[np.ndarray]] = [schema.allocate() for _ in range(credits)]
        self.free = deque(range(credits))
        self.out: set[int] = set()
        self.queue: deque[QueuedFragment] = deque()
        self.held: dict[int, QueuedFragment] = {}
        self.committed = 0
        self.refused: str | None = None
        self.leaving = False


class Meeting:
    """Where senders and the receiver of a transport meet. Everything in it is used with the condition held."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.rings: dict[SenderId, BufferRing] = {}
        self.newest: dict[int, int] = {}  # incarnation of each worker
        self.receiver: MemorySampleReceiver | None = None
        self.schema: Schema | None = None

    def join(self, ring: BufferRing) -> None:
        """Let a sender in; older incarnations of its worker are told to stop."""
        worker, incarnation = ring.sender
        if self.schema is not None and (difference := self.schema.difference(ring.schema)):
            raise RefusedError(f"the receiver takes another schema: {difference}")
        if incarnation < self.newest.get(worker, -1):
            raise RefusedError(f"{ring.sender} was replaced by incarnation {self.newest[worker]}")
        if ring.sender in self.rings:
            raise RefusedError(f"{ring.sender} is connected already")
        self.newest[worker] = incarnation
        for other in list(self.rings.values()):
            if other.sender.worker == worker:
                self.refuse(other, f"{other.sender} was replaced by incarnation {incarnation}")
        self.rings[ring.sender] = ring

    def refuse(self, ring: BufferRing, why: str) -> None:
        """No more of this sender; what it has committed is still received."""
        if ring.refused is None:
            ring.refused = why
            if self.receiver is not None:
                self.receiver.counters.refused += 1
        self.leave(ring)

    def leave(self, ring: BufferRing) -> None:
        """Forget a ring once it is empty."""
        ring.leaving = True
        if not ring.queue and not ring.held:
            self.rings.pop(ring.sender, None)
        self.condition.notify_all()


class MemorySampleSender(SampleSender):
    """The actor's end."""

    def __init__(self, meeting: Meeting, schema: Schema, sender: SenderId, credits: int) -> None:
        self.counters = Counters()
        self._meeting = meeting
        self._ring = BufferRing(schema, sender, credits)
        self._closed = False
        with meeting.condition:
            try:
                meeting.join(self._ring)
            except RefusedError:
                if meeting.receiver is not None:
                    meeting.receiver.counters.refused += 1
                raise

    def acquire(self, timeout: float) -> Buffer | None:
        """A free buffer."""
        return wait_for(self._meeting.condition, self._find_free, timeout)

    def _find_free(self) -> Buffer | None:
        ring = self._ring
        if ring.refused is not None:
            raise RefusedError(ring.refused)
        if not ring.free:
            return None
        index = ring.free.popleft()
        ring.out.add(index)
        return Buffer(index, ring.arrays[index])

    def commit(self, buffer: Buffer, header: FragmentHeader) -> None:
        """Into the queue."""
        ring = self._ring
        with self._meeting.condition:
            if buffer.index not in ring.out:
                raise ValueError(f"buffer {buffer.index} was not acquired, or committed already")
            if self._closed:
                raise StreamError(f"{ring.sender} is closed")
            if ring.refused is not None:
                raise RefusedError(ring.refused)
            ring.out.discard(buffer.index)
            ring.queue.append(QueuedFragment(ring.committed, buffer.index, header))
            ring.committed += 1
            self.counters.sent += 1
            self._meeting.condition.notify_all()

    def rebind(self, endpoint: str) -> None:
        """The transport's one meeting stays: a new receiver finds us in it."""

    def close(self) -> None:
        """Leave."""
        with self._meeting.condition:
            if not self._closed:
                self._closed = True
                self._meeting.leave(self._ring)


class MemorySampleReceiver(SampleReceiver):
    """The learner's end. A new one goes on where the one before it was."""

    def __init__(self, meeting: Meeting, schema: Schema, endpoint: str) -> None:
        self.endpoint = endpoint
        self.counters = Counters()
        self._meeting = meeting
        with meeting.condition:
            meeting.receiver, meeting.schema = self, schema
            for ring in list(meeting.rings.values()):
                if difference := schema.difference(ring.schema):
                    ring.queue.clear()
                    ring.held.clear()
                    meeting.refuse(ring, f"the receiver takes another schema: {difference}")
                ring.queue.extendleft(entry for _, entry in sorted(ring.held.items(), reverse=True))
                ring.held.clear()

    def receive(self, timeout: float) -> Received | None:
        """The next fragment of whoever's turn it is."""
        return wait_for(self._meeting.condition, self._take, timeout)

    def _take(self) -> Received | None:
        rings = self._meeting.rings
        if self._meeting.receiver is not self:
            return None
        for sender, ring in rings.items():
            if ring.queue:
                entry = ring.queue.popleft()
                ring.held[entry.position] = entry
                rings[sender] = rings.pop(sender)  # to the end: the others come first
                self.counters.received += 1
                release = partial(self._release, ring, entry)
                return Received(sender, entry.header, ring.arrays[entry.buffer], release)
        return None

    def _release(self, ring: BufferRing, entry: QueuedFragment) -> None:
        """Give the buffer back, unless we have left: then whoever comes next receives it again."""
        with self._meeting.condition:
            if self._meeting.receiver is self and ring.held.pop(entry.position, None) is not None:
                ring.free.append(entry.buffer)
                if ring.leaving:
                    self._meeting.leave(ring)
                self._meeting.condition.notify_all()

    def senders(self) -> dict[SenderId, int]:
        """Who is there, and how many fragments wait."""
        with self._meeting.condition:
            return {sender: len(ring.queue) for sender, ring in self._meeting.rings.items()}

    def close(self) -> None:
        """Leave all as it is, for the next receiver."""
        with self._meeting.condition:
            if self._meeting.receiver is self:
                self._meeting.receiver = None
