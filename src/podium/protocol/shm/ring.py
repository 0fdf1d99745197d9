"""One sender's fragments in shared memory: where everything lies, for the one who writes and the one who reads.

 tail       sender     how many were committed: written last, so what it counts is whole
 closed     sender     it has left
 refused    receiver   why it may not send any more (or a newer sender of the same worker)
 wakeup       sender     sleeps here for a free buffer
 states     both       of each buffer: 0 free, else 1 + its place in the order of commits; the receiver writes the 0
 queue      sender     which buffer was committed at place p: entry p % credits, read before that many more can follow
 headers, arrays       of each buffer

Who comes after a receiver that died finds in the states what was committed and not released, in order.
"""

import struct
from pathlib import Path
from typing import Annotated

import msgspec

from podium.protocol.schema import Schema, SenderId, Version
from podium.protocol.shm.futex import FutexWakeup
from podium.protocol.shm.rendezvous import named
from podium.protocol.shm.segment import LINE, FieldText, Segment, Size, aligned, attach, create, schema_of, schema_text
from podium.protocol.streams import FragmentHeader

TAIL, CLOSED, REFUSED, WAKEUP, STATES = 0, 8, LINE, 2 * LINE, 3 * LINE
HEADER = struct.Struct("<6q16x")
assert HEADER.size % LINE == 0

REPLACED, OTHER_SCHEMA = 1, 2  # why a sender is refused


class RingText(msgspec.Struct, frozen=True):
    """What a ring's file says of itself."""

    worker: Size
    incarnation: Size
    credits: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    schema: tuple[FieldText, ...]


class Ring:
    """A ring's words and arrays, made once."""

    def __init__(self, segment: Segment) -> None:
        text = segment.describe(RingText)
        self.segment = segment
        self.sender = SenderId(text.worker, text.incarnation)
        self.credits = text.credits
        self.schema = schema_of(text.schema)
        queue = STATES + aligned(8 * text.credits)
        headers = queue + aligned(8 * text.credits)
        data = headers + HEADER.size * text.credits
        segment.check_size(data + self.schema.nbytes * text.credits)
        self.tail = segment.words(TAIL, 1)
        self.closed = segment.words(CLOSED, 1)
        self.refused = segment.words(REFUSED, 1)
        self.wakeup = FutexWakeup(segment.memory, segment.start + WAKEUP)
        self.states = segment.words(STATES, text.credits)
        self.queue = segment.words(queue, text.credits)
        self.arrays = [
            self.schema.views(segment.memory, segment.start + data + self.schema.nbytes * index)
            for index in range(text.credits)
        ]
        self._headers = segment.start + headers

    def write_header(self, index: int, header: FragmentHeader) -> None:
        """Into the buffer of this index."""
        slot, sequence, version, steps, produced = header
        place = self._headers + HEADER.size * index
        HEADER.pack_into(self.segment.memory, place, slot, sequence, *version, steps, produced)

    def read_header(self, index: int) -> FragmentHeader:
        """Of the buffer of this index."""
        place = self._headers + HEADER.size * index
        slot, sequence, incarnation, update, steps, produced = HEADER.unpack_from(self.segment.memory, place)
        return FragmentHeader(slot, sequence, Version(incarnation, update), steps, produced)

    def refuse(self, reason: int) -> None:
        """Tell the sender, also if it sleeps."""
        self.refused[0] = reason
        self.wakeup.wake()


def ring_path(directory: Path, sender: SenderId) -> Path:
    """Where a sender's ring is."""
    return directory / f"ring-{sender.worker}-{sender.incarnation}"


def ring_senders(directory: Path) -> list[SenderId]:
    """Who has a ring in a directory."""
    return named(directory, "ring-")


def create_ring(directory: Path, schema: Schema, sender: SenderId, credits: int) -> Ring:
    """A new, empty ring. Raises FileExistsError if the sender has one."""
    text = RingText(sender.worker, sender.incarnation, credits, schema_text(schema))
    nbytes = STATES + 2 * aligned(8 * credits) + (HEADER.size + schema.nbytes) * credits
    return Ring(create(ring_path(directory, sender), text, nbytes))


def attach_ring(directory: Path, sender: SenderId) -> Ring:
    """A sender's ring. Raises FileNotFoundError if it has gone."""
    return Ring(attach(ring_path(directory, sender)))
