"""Ends that connect to another, by the way that leads there: it changes when a peer comes back on another host."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from podium.core.errors import StreamError
from podium.protocol.schema import Version
from podium.protocol.streams import (
    Buffer,
    FragmentHeader,
    InferenceClient,
    ParameterReader,
    Reply,
    SampleSender,
)

End = TypeVar("End", SampleSender, ParameterReader, InferenceClient)


class Route(NamedTuple):
    """A way to an endpoint: its transport, the endpoint as that transport knows it, and how to connect."""

    transport: type
    endpoint: str
    connect: Callable[[], Any]


class Connection(Generic[End]):
    """An end that can be replaced by one of another transport. `route` finds the way to an endpoint."""

    def __init__(self, route: Callable[[str], Route], endpoint: str) -> None:
        self._route = route
        way = route(endpoint)
        self._transport, self.end = way.transport, way.connect()

    def moves(self, endpoint: str) -> bool:
        """Go to where the peer has come back; says whether that is by another way, with a new end."""
        way = self._route(endpoint)
        if way.transport is self._transport:
            self.end.rebind(way.endpoint)
            return False
        old, self._transport = self.end, way.transport
        self.end = way.connect()
        self.end.counters = old.counters
        old.close()
        return True


class NearestSender(SampleSender):
    """After a change of the way, buffers of the old end stay good: what is in them is copied when it is committed."""

    def __init__(self, route: Callable[[str], Route], endpoint: str) -> None:
        self._connection: Connection[SampleSender] = Connection(route, endpoint)
        self.counters = self._connection.end.counters
        self._taken: dict[int, Buffer] = {}  # by the address of the buffer that the caller has: the present end's
        self._held: dict[int, Buffer] = {}  # the callers' own, which keeps their addresses apart

    def acquire(self, timeout: float) -> Buffer | None:
        buffer = self._connection.end.acquire(timeout)
        if buffer is not None:
            self._taken[id(buffer)] = self._held[id(buffer)] = buffer
        return buffer

    def commit(self, buffer: Buffer, header: FragmentHeader) -> None:
        if (own := self._taken.pop(id(buffer), None)) is None:
            raise ValueError(f"buffer {buffer.index} was not acquired, or was committed already")
        del self._held[id(buffer)]
        if own is not buffer:
            for target, array in zip(own.arrays, buffer.arrays, strict=True):
                target[...] = array
        self._connection.end.commit(own, header)

    def rebind(self, endpoint: str) -> None:
        if self._connection.moves(endpoint):
            self._taken = {key: self._spare() for key in self._taken}

    def _spare(self) -> Buffer:
        """A new end has all its buffers free."""
        if (buffer := self._connection.end.acquire(0.0)) is None:
            raise StreamError("a new sender has no free buffer")
        return buffer

    def close(self) -> None:
        self._connection.end.close()


class NearestReader(ParameterReader):
    """Versions grow over a change of the way, too."""

    def __init__(self, route: Callable[[str], Route], endpoint: str) -> None:
        self._connection: Connection[ParameterReader] = Connection(route, endpoint)
        self.counters = self._connection.end.counters
        self._version: Version | None = None

    def read(self, timeout: float = 0.0) -> tuple[Version, list[np.ndarray]] | None:
        news = self._connection.end.read(timeout)
        if news is None or (self._version is not None and news[0] <= self._version):
            return None
        self._version = news[0]
        return news

    def rebind(self, endpoint: str) -> None:
        self._connection.moves(endpoint)

    def close(self) -> None:
        self._connection.end.close()


class NearestClient(InferenceClient):
    """Requests that were out when the way changed fail at the next poll."""

    def __init__(self, route: Callable[[str], Route], endpoint: str) -> None:
        self._connection: Connection[InferenceClient] = Connection(route, endpoint)
        self.counters = self._connection.end.counters
        self._out: set[int] = set()
        self._lost: set[int] = set()

    def submit(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        self._connection.end.submit(slot, arrays)
        self._out.add(slot)
        self._lost.discard(slot)

    def poll(self, timeout: float) -> list[Reply]:
        lost = [Reply(slot, Version(0, 0), None) for slot in sorted(self._lost)]
        self._lost.clear()
        replies = lost + self._connection.end.poll(0.0 if lost else timeout)
        self._out.difference_update(reply.slot for reply in replies)
        return replies

    def rebind(self, endpoint: str) -> None:
        if self._connection.moves(endpoint):
            self._lost |= self._out

    def close(self) -> None:
        self._connection.end.close()
