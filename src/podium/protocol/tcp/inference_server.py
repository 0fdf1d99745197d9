"""An inference worker's end over TCP: requests merged as they are pending, answers to whoever asked."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from podium.core.errors import MalformedError
from podium.core.padding import padded_size
from podium.core.transports import TCP
from podium.protocol.batches import batched
from podium.protocol.schema import Schema, Version, check_arrays
from podium.protocol.streams import Counters, InferenceServer, RequestBatch
from podium.protocol.tcp.inference_client import MOST_SLOTS
from podium.protocol.tcp.message_layout import RowLayout
from podium.protocol.tcp.peers import Peer
from podium.protocol.tcp.reception import Desk, Reception
from podium.protocol.tcp.sockets import Listening, Part
from podium.protocol.tcp.wire import HELLO, WORDS, AnswerMessage, Hello, RequestMessage, Welcome, words

LENT = 4  # batches that may be out at once without new memory


class Pending(NamedTuple):
    """A request that has come and is not in a batch yet, or is in one and not answered yet."""

    peer: Peer[None]
    slot: int
    sequence: int
    rows: int
    block: Part


class TcpInferenceServer(InferenceServer):
    """Of each slot only the newest request is pending, so clients bound what waits here."""

    def __init__(self, listening: Listening, request: Schema, reply: Schema) -> None:
        self.counters = Counters()
        self._request, self._reply = request, reply
        self._rows = RowLayout(request)
        self._pending: dict[tuple[Peer[None], int], Pending] = {}
        self._free: dict[int, list[list[np.ndarray]]] = {}  # memory of answered batches, by their padded rows
        self._lent: list[RequestBatch] = []
        self._reception: Reception[None] = Reception(
            listening,
            self.counters,
            Desk(
                stream="inference",
                schemas=(request, reply),
                kind=RequestMessage,
                largest=max(HELLO, TCP.most_rows * self._rows.nbytes + WORDS),
                depth=2 * MOST_SLOTS,
                fresh=_check_slots,
                take=self._enqueue,
                welcome=lambda *_: Welcome(),
                left=self._forget,
                ready=self._pending,
            ),
        )
        self._router, self._peers = self._reception.router, self._reception.peers
        self.endpoint = self._reception.endpoint
        self._reception.start()

    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        self._reception.serve()
        if not self._pending and not self._wait_until(time.monotonic() + timeout, lambda: bool(self._pending)):
            return None
        if wait > 0:
            self._wait_until(time.monotonic() + wait, lambda: self._full(max_rows))
        with self._router.lock:
            parts, rows = [], 0
            for pending in self._pending.values():
                if parts and rows + pending.rows > max_rows:
                    break
                parts.append(pending)
                rows += pending.rows
            for pending in parts:
                del self._pending[pending.peer, pending.slot]
        return self._merge(parts, rows) if parts else None

    def _full(self, max_rows: int) -> bool:
        """Whether no request can be added: the batch is full, or every slot of every client is in it."""
        with self._router.lock:  # the router's own thread may just be adding one
            slots = sum(len(peer.sizes) for peer in self._peers.all())
            return len(self._pending) >= slots or sum(p.rows for p in self._pending.values()) >= max_rows

    def _wait_until(self, end: float, done: Callable[[], bool]) -> bool:
        while not (finished := done()):
            if self._router.closed or (left := end - time.monotonic()) <= 0:
                break
            self._router.wait(left, ())
            self._reception.serve()
        return finished

    def _merge(self, parts: list[Pending], rows: int) -> RequestBatch:
        padded = padded_size(rows)
        free = self._free.get(padded)
        arrays = free.pop() if free else batched(self._request, padded).allocate()
        start = 0
        for part in parts:
            end = start + part.rows
            for array, own in zip(arrays, self._rows.views(part.block, part.rows), strict=True):
                array[start:end] = own
            start = end
        for array in arrays:
            array[rows:] = 0
        batch = RequestBatch(arrays, rows, [part._replace(block=b"") for part in parts])
        self._lent = [*self._lent[1 - LENT :], batch]
        self.counters.received += len(parts)
        return batch

    def reply(self, batch: RequestBatch, version: Version, arrays: Sequence[np.ndarray]) -> None:
        outputs = [np.ascontiguousarray(array) for array in arrays]
        check_arrays(batched(self._reply, batch.rows), [output[: batch.rows] for output in outputs])
        start = 0
        with self._router.lock:
            if self._router.closed:
                return
            for part in batch.parts:
                end = start + part.rows
                message = words(AnswerMessage(part.slot, part.sequence, Version(*version)))
                block = b"".join((*(output[start:end].data for output in outputs), message))
                start = end
                if part.peer.open and self._router.send(part.peer.route, block) == "sent":
                    self.counters.sent += 1
        for place, lent in enumerate(self._lent):
            if lent is batch:
                del self._lent[place]
                self._free.setdefault(len(batch.arrays[0]), []).append(batch.arrays)
                break

    def _enqueue(self, peer: Peer[None], request: RequestMessage, size: int, parts: list[memoryview]) -> None:
        if request.slot >= len(peer.sizes):
            raise MalformedError(f"slot {request.slot} of {len(peer.sizes)}")
        rows = peer.sizes[request.slot]
        if size != rows * self._rows.nbytes:
            raise MalformedError(f"a request of {size} bytes for {rows} rows of {self._rows.nbytes}")
        self._pending[peer, request.slot] = Pending(peer, request.slot, request.sequence, rows, parts[0])

    def _forget(self, peer: Peer[None]) -> None:
        for slot in range(len(peer.sizes)):
            self._pending.pop((peer, slot), None)

    def close(self) -> None:
        self._reception.close()


def _check_slots(hello: Hello) -> None:
    if not 1 <= len(hello.sizes) <= MOST_SLOTS or max(hello.sizes) > TCP.most_rows:
        raise MalformedError("no slots, too many, or too many rows")
