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
HEADER = struct.Struct("<6qH142s")
assert HEADER.size % LINE == 0
NAME_BYTES = 142

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
        self._names: dict[str, bytes] = {}
        self._last = b"", ""  # a ring's fragments are mostly of one policy

    def write_header(self, index: int, header: FragmentHeader) -> None:
        """Into the buffer of this index."""
        policy, slot, sequence, (incarnation, update), steps, produced = header
        name = self._names.get(policy)
        if name is None:
            name = self._names[policy] = encode_name(policy)
        place = self._headers + HEADER.size * index
        memory = self.segment.memory
        HEADER.pack_into(memory, place, slot, sequence, incarnation, update, steps, produced, len(name), name)

    def read_header(self, index: int) -> FragmentHeader:
        """Of the buffer of this index. Raises ValueError if its name is none."""
        place = self._headers + HEADER.size * index
        slot, sequence, incarnation, update, steps, produced, length, name = HEADER.unpack_from(
            self.segment.memory, place
        )
        known, policy = self._last
        if name != known:
            policy = name[:length].decode()
            self._last = name, policy
        return FragmentHeader(policy, slot, sequence, Version(incarnation, update), steps, produced)

    def refuse(self, reason: int) -> None:
        """Tell the sender, also if it sleeps."""
        self.refused[0] = reason
        self.wakeup.wake()


def encode_name(policy: str) -> bytes:
    """A policy's name as it stands in a header."""
    name = policy.encode()
    if len(name) > NAME_BYTES:
        raise ValueError(f"policy {policy!r}: its name has {len(name)} bytes, {NAME_BYTES} is the most")
    return name


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
