"""Inference streams between threads: requests wait in their slots until the server merges them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from podium.core.errors import RefusedError, StreamError
from podium.protocol.batches import BatchPool, PooledBatch, batched, check_outputs
from podium.protocol.memory.waiting import wait_for
from podium.protocol.schema import Schema, SenderId, Version, check_arrays
from podium.protocol.streams import Counters, InferenceClient, InferenceServer, Reply, RequestBatch

NOBODY = Version(-1, -1)  # the version of a request that failed


class PendingSlot:
    """A slot's request and its reply. `asked` is the number of the current request, 0 if there is none."""

    def __init__(self, request: Schema, reply: Schema, rows: int) -> None:
        self.rows = rows
        self.schema = batched(request, rows)
        self.request = self.schema.allocate()
        self.reply = batched(reply, rows).allocate()
        self.asked = 0
        self.taken = 0
        self.answered = -1
        self.version = NOBODY


class BatchPart(NamedTuple):
    """Whose request begins at row `start` of a batch."""

    slot: PendingSlot
    number: int
    start: int


class MemoryInferenceServer(InferenceServer):
    """The inference worker's end."""

    def __init__(
        self, servers: "dict[str, MemoryInferenceServer]", endpoint: str, request: Schema, reply: Schema
    ) -> None:
        self.endpoint = endpoint
        self.counters = Counters()
        self.schemas = request, reply
        self.condition = threading.Condition()
        self.clients: dict[SenderId, list[PendingSlot]] = {}
        self._batches = BatchPool(request)
        self._servers = servers
        self._last: PendingSlot | None = None  # the first that did not fit into the last batch
        servers[endpoint] = self

    def join(self, client: SenderId, slots: list[PendingSlot]) -> None:
        """Serve a client; a newer incarnation takes the place of an older one."""
        with self.condition:
            for other in list(self.clients):
                if other.worker == client.worker:
                    if other.incarnation >= client.incarnation:
                        self.counters.refused += 1
                        raise RefusedError(f"{client} was replaced by {other}")
                    del self.clients[other]
            self.clients[client] = slots

    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        """Wait for the first request, then for more; copy each once, straight into the batch."""
        with self.condition:
            found = wait_for(self.condition, self._pending, timeout)
            if found is None:
                return None
            if wait > 0:
                enough: Callable[[], bool | None] = lambda: self._is_enough(max_rows) or None  # noqa: E731
                wait_for(self.condition, enough, wait)
            # Requests may have been given up while we waited for more, but only by their clients: they then fail.
            return self._merge(self._pending() or [], max_rows)

    def _pending(self) -> list[PendingSlot] | None:
        """Slots with a request that was not taken yet."""
        slots = [slot for own in self.clients.values() for slot in own if slot.asked > slot.taken]
        if self._last in slots:
            place = slots.index(self._last)
            slots = slots[place:] + slots[:place]
        return slots or None

    def _is_enough(self, max_rows: int) -> bool:
        """Whether a batch is full, or nobody is left who could ask."""
        slots = self._pending() or []
        return len(slots) == sum(map(len, self.clients.values())) or sum(slot.rows for slot in slots) >= max_rows

    def _merge(self, slots: list[PendingSlot], max_rows: int) -> PooledBatch | None:
        """Copy requests into one batch, up to the first that does not fit; that one is the next batch's first."""
        parts: list[BatchPart] = []
        rows = 0
        for slot in slots:
            if parts and rows + slot.rows > max_rows:
                self._last = slot
                break
            parts.append(BatchPart(slot, slot.asked, rows))
            slot.taken = slot.asked
            rows += slot.rows
        if not parts:
            return None
        block = self._batches.take(rows)
        for slot, _, start in parts:
            for target, array in zip(block.arrays, slot.request, strict=True):
                target[start : start + slot.rows] = array
        self.counters.received += len(parts)
        return PooledBatch(block.filled(rows), rows, parts, block)

    def reply(self, batch: RequestBatch, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Copy each part's rows to its slot, unless that has asked anew or given up."""
        arrays = [np.asarray(array) for array in arrays]
        check_outputs(self.schemas[1], batch.rows, arrays)
        with self.condition:
            for slot, number, start in batch.parts:
                if slot.asked != number or slot.answered == number:
                    continue
                for target, array in zip(slot.reply, arrays, strict=True):
                    target[...] = array[start : start + slot.rows]
                slot.version, slot.answered = version, number
                self.counters.sent += 1
            self._batches.give_back(batch)
            self.condition.notify_all()

    def close(self) -> None:
        """Leave: who asks from now on gets no answer."""
        self._servers.pop(self.endpoint, None)


class MemoryInferenceClient(InferenceClient):
    """The actor's end."""

    def __init__(
        self,
        servers: dict[str, MemoryInferenceServer],
        endpoint: str,
        request: Schema,
        reply: Schema,
        client: SenderId,
        rows: Sequence[int],
        limit: float,
    ) -> None:
        self.counters = Counters()
        self._servers = servers
        self._schemas = request, reply
        self._client = client
        self._rows = tuple(rows)
        self._limit = limit
        self._number = 0
        self._deadlines: dict[int, float] = {}
        self._join(endpoint)

    def _join(self, endpoint: str) -> None:
        """New slots at a server: one that still answers our old requests answers nobody."""
        server = self._servers.get(endpoint)
        if server is None:
            raise StreamError(f"no inference server at {endpoint}: it has gone")
        for theirs, mine in zip(server.schemas, self._schemas, strict=True):
            if difference := theirs.difference(mine):
                raise RefusedError(f"the inference server takes another schema: {difference}")
        self._slots = [PendingSlot(*self._schemas, rows) for rows in self._rows]
        server.join(self._client, self._slots)
        self._server = server

    def submit(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy into the slot, with the next number."""
        own = self._slots[slot]
        check_arrays(own.schema, arrays)
        with self._server.condition:
            for target, array in zip(own.request, arrays, strict=True):
                target[...] = array
            self._number += 1
            own.asked = self._number
            self._deadlines[slot] = time.monotonic() + self._limit
            self.counters.sent += 1
            self._server.condition.notify_all()

    def poll(self, timeout: float) -> list[Reply]:
        """Replies first; then what was out too long fails."""
        if not self._deadlines:
            return []
        left = min(self._deadlines.values()) - time.monotonic()
        replies = wait_for(self._server.condition, self._replies, min(timeout, left)) or []
        now = time.monotonic()
        for slot, end in list(self._deadlines.items()):
            if end <= now:
                with self._server.condition:
                    self._slots[slot].asked = 0
                del self._deadlines[slot]
                replies.append(Reply(slot, NOBODY, None))
        return replies

    def _replies(self) -> list[Reply] | None:
        """What has been answered."""
        found = [slot for slot in self._deadlines if self._slots[slot].answered == self._slots[slot].asked]
        for slot in found:
            del self._deadlines[slot]
        self.counters.received += len(found)
        return [Reply(slot, self._slots[slot].version, self._slots[slot].reply) for slot in found] or None

    def rebind(self, endpoint: str) -> None:
        """Leave the old server, join the new one; what was out fails at the next poll."""
        self._leave()
        self._join(endpoint)
        self._deadlines = dict.fromkeys(self._deadlines, 0.0)

    def _leave(self) -> None:
        with self._server.condition:
            if self._server.clients.get(self._client) is self._slots:
                del self._server.clients[self._client]

    def close(self) -> None:
        """Leave."""
        self._leave()
        self._deadlines.clear()
