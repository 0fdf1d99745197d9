"""The actor's end of a sample stream over shared memory."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from podium.core.errors import MalformedSegmentError, RefusedError, StreamError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.futex import order
from podium.protocol.shm.rendezvous import Rendezvous, path_of
from podium.protocol.shm.ring import OTHER_SCHEMA, REPLACED, attach_ring, create_ring, ring_senders
from podium.protocol.shm.sample_receiver import DOOR, receiver_schema
from podium.protocol.streams import Buffer, Counters, FragmentHeader, SampleSender


class ShmSampleSender(SampleSender):
    """The actor's end: buffers are the ring's own memory."""

    def __init__(self, directory: Path, schema: Schema, sender: SenderId, credits: int) -> None:
        self.counters = Counters()
        self._schema = schema
        self._sender = sender
        self._credits = credits
        self._out: set[int] = set()
        self._closed = False
        self._join(directory)

    def _join(self, directory: Path) -> None:
        """Make our ring in a directory and tell the receiver; older incarnations of this worker are told to stop."""
        self._directory = directory
        theirs = receiver_schema(directory)
        if theirs is not None and (difference := theirs.difference(self._schema)):
            raise RefusedError(f"the receiver takes another schema: {difference}")
        self._refuse_if_old()
        try:
            self._rendezvous = Rendezvous(directory / DOOR)
            self._ring = ring = create_ring(directory, self._schema, self._sender, self._credits)
        except FileExistsError:
            raise RefusedError(f"{self._sender} is connected already") from None
        except FileNotFoundError:
            raise StreamError(f"{directory} is not there: its owner has gone") from None
        try:
            self._refuse_if_old()
        except RefusedError:
            ring.segment.unlink()
            raise
        for other in self._lives():
            if other.incarnation < self._sender.incarnation:
                refuse_ring(directory, other)
        self._buffers = [Buffer(index, arrays) for index, arrays in enumerate(ring.arrays)]
        self._free = deque(index for index in range(self._credits) if index not in self._out)
        self._committed: list[int] = []
        self._position = 0
        self._rendezvous.announce()

    def _lives(self) -> list[SenderId]:
        """The rings of this worker."""
        return [other for other in ring_senders(self._directory) if other.worker == self._sender.worker]

    def _refuse_if_old(self) -> None:
        if newer := [other for other in self._lives() if other.incarnation > self._sender.incarnation]:
            raise RefusedError(f"{self._sender} was replaced by {newer[-1]}")

    def acquire(self, timeout: float) -> Buffer | None:
        """A free buffer of the ring."""
        return self._ring.wakeup.wait(self._find_free, timeout)

    def _find_free(self) -> Buffer | None:
        """A buffer that was never used, or that the receiver has released."""
        if self._ring.refused[0]:
            raise self._refusal()
        if not self._free:
            states, committed = self._ring.states, self._committed
            released = [index for index in committed if not states[index]]
            if not released:
                return None
            order()
            self._committed = [index for index in committed if index not in released]
            self._free.extend(released)
        index = self._free.popleft()
        self._out.add(index)
        return self._buffers[index]

    def commit(self, buffer: Buffer, header: FragmentHeader) -> None:
        """Header, state, queue, and last the tail, which makes it the receiver's."""
        ring, index = self._ring, buffer.index
        if index not in self._out:
            raise ValueError(f"buffer {index} was not acquired, or committed already")
        if self._closed:
            raise StreamError(f"{self._sender} is closed")
        if ring.refused[0]:
            raise self._refusal()
        if buffer is not self._buffers[index]:  # acquired before a rebind
            copy_all(buffer.arrays, ring.arrays[index])
        position = self._position
        ring.write_header(index, header)
        ring.queue[position % ring.credits] = index
        ring.states[index] = position + 1
        order()
        ring.tail[0] = self._position = position + 1
        self._out.discard(index)
        self._committed.append(index)
        self._rendezvous.wakeup.wake()
        self.counters.sent += 1

    def _refusal(self) -> RefusedError:
        """Why we were refused, in one line."""
        if self._ring.refused[0] == OTHER_SCHEMA:
            theirs = receiver_schema(self._directory)
            difference = None if theirs is None else theirs.difference(self._schema)
            return RefusedError(f"the receiver takes another schema: {difference}")
        return RefusedError(f"{self._sender} was replaced by a newer incarnation")

    def rebind(self, endpoint: str) -> None:
        """In the same directory the ring is where it was. In another, begin with a new one, all credits free."""
        directory = path_of(endpoint)
        if directory == self._directory:
            return
        self._leave()
        self._join(directory)

    def _leave(self) -> None:
        self._ring.closed[0] = 1
        self._rendezvous.announce()

    def close(self) -> None:
        """Leave; the receiver removes the ring when it is empty."""
        if not self._closed:
            self._closed = True
            self._leave()


def copy_all(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
    """Array by array."""
    for source, target in zip(sources, targets, strict=True):
        target[...] = source


def refuse_ring(directory: Path, sender: SenderId) -> None:
    """Tell an older incarnation of a worker to stop, unless its ring has just been removed, or was none."""
    try:
        attach_ring(directory, sender).refuse(REPLACED)
    except (FileNotFoundError, MalformedSegmentError):
        return
