"""One client's requests and replies in shared memory: where everything lies, for who asks and who answers.

A slot's request carries an even number, larger each time; while the request is written, or after it was given up, the
number is odd. A reply counts only if it carries the number of the current request: an old action is never seen again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from podium.protocol.batches import batched
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.futex import FutexWakeup
from podium.protocol.shm.rendezvous import named
from podium.protocol.shm.segment import LINE, FieldText, Segment, Size, schema_of

WAKEUP, CLOSED, SLOTS = 0, LINE, 2 * LINE  # then for each slot a line: asked; and a line: answered, version


class ClientText(msgspec.Struct, frozen=True):
    """What a client's file says of itself."""

    worker: Size
    incarnation: Size
    rows: tuple[Size, ...]
    request: tuple[FieldText, ...]
    reply: tuple[FieldText, ...]


class ServerText(msgspec.Struct, frozen=True):
    """What a server's file says of itself."""

    request: tuple[FieldText, ...]
    reply: tuple[FieldText, ...]


class RequestSlot(NamedTuple):
    """One slot of an area: `asked` and `answered` are numbers of requests."""

    rows: int
    asked: memoryview  # [number]; the client writes it
    answered: memoryview  # [number, incarnation, update]; the server writes it
    request: list[np.ndarray]
    reply: list[np.ndarray]


class ClientSlots:
    """A client's words and arrays, made once."""

    def __init__(self, segment: Segment) -> None:
        text = segment.describe(ClientText)
        self.segment = segment
        self.client = SenderId(text.worker, text.incarnation)
        self.request, self.reply = schema_of(text.request), schema_of(text.reply)
        segment.check_size(area_bytes(self.request, self.reply, text.rows))
        self.wakeup = FutexWakeup(segment.memory, segment.start + WAKEUP)
        self.closed = segment.words(CLOSED, 1)
        self.slots: list[RequestSlot] = []
        place = SLOTS + 2 * LINE * len(text.rows)
        for slot, rows in enumerate(text.rows):
            asked = segment.words(SLOTS + 2 * LINE * slot, 1)
            answered = segment.words(SLOTS + 2 * LINE * slot + LINE, 3)
            schemas = batched(self.request, rows), batched(self.reply, rows)
            request = schemas[0].views(segment.memory, segment.start + place)
            reply = schemas[1].views(segment.memory, segment.start + place + schemas[0].nbytes)
            place += schemas[0].nbytes + schemas[1].nbytes
            self.slots.append(RequestSlot(rows, asked, answered, request, reply))


def area_bytes(request: Schema, reply: Schema, rows: Sequence[int]) -> int:
    """How large a client's area is."""
    areas = sum(batched(request, n).nbytes + batched(reply, n).nbytes for n in rows)
    return SLOTS + 2 * LINE * len(rows) + areas


def area_path(server: Path, client: SenderId) -> Path:
    """Where a client's area is."""
    return server.with_name(f"client-{server.name}-{client.worker}-{client.incarnation}")


def area_clients(server: Path) -> list[SenderId]:
    """Who has an area beside a server."""
    return named(server.parent, f"client-{server.name}-")
