"""Ends that others connect to, bound to shared memory and to TCP: what comes by either way is taken in turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import (
    InferenceServer,
    ParameterPublisher,
    Received,
    RequestBatch,
    SampleReceiver,
)

SHORTEST_S, LONGEST_S = 0.0005, 0.008
"""How long one end is waited for before the other is looked at again: longer, the longer nothing has come."""

End = TypeVar("End", SampleReceiver, InferenceServer)
Found = TypeVar("Found")


class BothEnds(Generic[End]):
    """Two ends as one. They are looked at in turn; the one that had something last is the one that is waited for."""

    def __init__(self, near: End, far: End) -> None:
        self._ends = near, far
        self._next = 0
        self._busy = 0

    def take(self, look: Callable[[End, float], Found | None], timeout: float) -> Found | None:
        """What `look(end, timeout)` finds at either end; None after `timeout` seconds."""
        end, pause = time.monotonic() + timeout, SHORTEST_S
        while True:
            for place in (self._next, 1 - self._next):
                if (found := look(self._ends[place], 0.0)) is not None:
                    self._next, self._busy = 1 - place, place
                    return found
            if (left := end - time.monotonic()) <= 0:
                return None
            if (found := look(self._ends[self._busy], min(left, pause))) is not None:
                self._next = 1 - self._busy
                return found
            pause = min(2 * pause, LONGEST_S)

    def close(self) -> None:
        """Close both."""
        for end in self._ends:
            end.close()


class NearestReceiver(SampleReceiver):
    """Senders of this host and of others."""

    def __init__(self, endpoint: str, near: SampleReceiver, far: SampleReceiver) -> None:
        self.endpoint = endpoint
        near.counters = self.counters = far.counters
        self._near, self._far, self._both = near, far, BothEnds(near, far)

    def receive(self, timeout: float) -> Received | None:
        return self._both.take(lambda end, seconds: end.receive(seconds), timeout)

    def senders(self) -> dict[SenderId, int]:
        return {**self._near.senders(), **self._far.senders()}

    def close(self) -> None:
        self._both.close()


class NearestPublisher(ParameterPublisher):
    """Readers of this host and of others."""

    def __init__(self, endpoint: str, near: ParameterPublisher, far: ParameterPublisher) -> None:
        self.endpoint = endpoint
        self.counters = far.counters  # what leaves this host is what costs
        self._near, self._far = near, far

    def publish(self, version: Version, arrays: Sequence[np.ndarray]) -> None:
        self._near.publish(version, arrays)
        self._far.publish(version, arrays)

    def close(self) -> None:
        self._near.close()
        self._far.close()


@dataclass
class GatheredBatch(RequestBatch):
    """A batch and the end that it came by. Its requests have all come the same way."""

    server: Any = None
    batch: Any = None


class NearestServer(InferenceServer):
    """Clients of this host and of others."""

    def __init__(self, endpoint: str, near: InferenceServer, far: InferenceServer) -> None:
        self.endpoint = endpoint
        near.counters = self.counters = far.counters
        self._both = BothEnds(near, far)

    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        def look(server: InferenceServer, seconds: float) -> GatheredBatch | None:
            batch = server.gather(max_rows, wait, seconds)
            return None if batch is None else GatheredBatch(batch.arrays, batch.rows, batch.parts, server, batch)

        return self._both.take(look, timeout)

    def reply(self, batch: RequestBatch, version: Version, arrays: Sequence[np.ndarray]) -> None:
        assert isinstance(batch, GatheredBatch), "only what this server gave is answered"
        batch.server.reply(batch.batch, version, arrays)

    def close(self) -> None:
        self._both.close()
