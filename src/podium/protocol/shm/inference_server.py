"""The inference worker's end of an inference stream over shared memory."""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from podium.core.errors import MalformedSegmentError
from podium.protocol.batches import BatchPool, PooledBatch, check_outputs
from podium.protocol.schema import Schema, SenderId, Version
from podium.protocol.shm.futex import order
from podium.protocol.shm.rendezvous import Rendezvous, endpoint_of
from podium.protocol.shm.request_slots import ClientSlots, RequestSlot, ServerText, area_clients, area_path
from podium.protocol.shm.segment import attach, create, schema_text
from podium.protocol.streams import Counters, InferenceServer, RequestBatch


class Watch:
    """A slot as the server sees it: `handled` is the number of the request that it took last."""

    __slots__ = ("area", "handled", "slot")

    def __init__(self, area: ClientSlots, slot: RequestSlot) -> None:
        self.area = area
        self.slot = slot
        self.handled = slot.answered[0]


class BatchPart(NamedTuple):
    """Whose request begins at row `start` of a batch."""

    watch: Watch
    number: int
    start: int


class ShmInferenceServer(InferenceServer):
    """Takes what is pending."""

    def __init__(self, directory: Path, request: Schema, reply: Schema) -> None:
        self.counters = Counters()
        self._request, self._reply = request, reply
        self._path = directory / f"server-{secrets.token_hex(8)}"
        create(self._path, ServerText(schema_text(request), schema_text(reply)), 0)
        self.endpoint = endpoint_of(self._path)
        self._rendezvous = Rendezvous(self._path.with_name(f"{self._path.name}.rendezvous"))
        self._areas: dict[SenderId, ClientSlots] = {}
        self._unreadable: set[SenderId] = set()
        self._watched: list[Watch] = []
        self._batches = BatchPool(request)
        self._scan()

    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        """Wait for the first request, then for more; copy each once, straight into the batch."""
        end = time.monotonic() + timeout
        wakeup = self._rendezvous.wakeup
        while (found := wakeup.wait(self._pending, max(0.0, end - time.monotonic()))) is not None:
            if wait > 0 and not self._is_enough(found, max_rows):
                found = wakeup.wait(lambda: self._enough(max_rows), wait) or self._pending() or []
            if (batch := self._merge(found, max_rows)) is not None:
                self.counters.received += len(batch.parts)
                return batch
        return None

    def _pending(self) -> list[Watch] | None:
        """The slots with a request that was not taken yet."""
        if self._rendezvous.joins[0] != self._joins:
            self._scan()
        return [
            watch for watch in self._watched if (number := watch.slot.asked[0]) != watch.handled and not number & 1
        ] or None

    def _is_enough(self, found: list[Watch], max_rows: int) -> bool:
        """Whether a batch is full, or no other client could ask."""
        return len(found) == len(self._watched) or sum(watch.slot.rows for watch in found) >= max_rows

    def _enough(self, max_rows: int) -> list[Watch] | None:
        found = self._pending()
        return found if found is not None and self._is_enough(found, max_rows) else None

    def _merge(self, found: list[Watch], max_rows: int) -> PooledBatch | None:
        """Copy requests into one batch, up to the first that does not fit; that one is the next batch's first."""
        chosen, rows = [], 0
        for watch in found:
            if chosen and rows + watch.slot.rows > max_rows:
                place = self._watched.index(watch)
                self._watched = self._watched[place:] + self._watched[:place]
                break
            chosen.append(watch)
            rows += watch.slot.rows
        block = self._batches.take(max(1, rows))
        parts: list[BatchPart] = []
        start = 0
        for watch in chosen:
            number, end = watch.slot.asked[0], start + watch.slot.rows
            order()
            for target, array in zip(block.arrays, watch.slot.request, strict=True):
                target[start:end] = array
            order()
            if number & 1 or watch.slot.asked[0] != number:
                continue  # asked anew, or gave up, while we copied: the next part lies over it
            watch.handled = number
            parts.append(BatchPart(watch, number, start))
            start = end
        if not parts:
            self._batches.give(block)
            return None
        return PooledBatch(block.filled(start), start, parts, block)

    def reply(self, batch: RequestBatch, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Copy each part's rows to its slot, then wake each client once."""
        arrays = [np.asarray(array) for array in arrays]
        check_outputs(self._reply, batch.rows, arrays)
        touched: dict[int, ClientSlots] = {}
        for watch, number, start in batch.parts:
            rows, asked, answered, _, targets = watch.slot
            if asked[0] != number or answered[0] == number:
                continue  # given up, asked anew, or answered already
            for target, array in zip(targets, arrays, strict=True):
                target[...] = array[start : start + rows]
            answered[1], answered[2] = version
            order()
            answered[0] = number
            touched[id(watch.area)] = watch.area
            self.counters.sent += 1
        for area in touched.values():
            area.wakeup.wake()
        self._batches.give_back(batch)

    def _scan(self) -> None:
        """Find clients that have come or left; of a worker, only its newest incarnation is served."""
        self._joins = self._rendezvous.joins[0]
        order()
        found = area_clients(self._path)
        newest = {client.worker: client for client in sorted([*self._areas, *found])}
        for client in found:
            if client != newest[client.worker]:
                area_path(self._path, client).unlink(missing_ok=True)
                self.counters.refused += 1
            elif client not in self._areas and client not in self._unreadable:
                self._welcome(client)
        for client, area in list(self._areas.items()):
            if area.closed[0] or client != newest[client.worker]:
                del self._areas[client]
                self._watched = [watch for watch in self._watched if watch.area is not area]

    def _welcome(self, client: SenderId) -> None:
        try:
            area = ClientSlots(attach(area_path(self._path, client)))
        except FileNotFoundError:
            return
        except MalformedSegmentError:
            self._unreadable.add(client)
            self.counters.malformed += 1
            return
        if self._request.difference(area.request) or self._reply.difference(area.reply):
            self._unreadable.add(client)  # a client checks this itself: one that did not is not one of ours
            self.counters.refused += 1
            return
        self._areas[client] = area
        self._watched += [Watch(area, slot) for slot in area.slots]

    def close(self) -> None:
        self._areas, self._watched = {}, []
        for client in area_clients(self._path):
            area_path(self._path, client).unlink(missing_ok=True)
        self._path.with_name(f"{self._path.name}.rendezvous").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
