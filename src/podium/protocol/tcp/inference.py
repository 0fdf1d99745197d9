"""Inference over TCP: numbered requests, merged as they are pending, and answers that name the request they are for."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import zmq

from podium.protocol.keys import RunKeys
from podium.protocol.schema import Field, Schema, SenderId, Version, check_arrays
from podium.protocol.streams import Counters, InferenceClient, InferenceServer, Reply, RequestBatch
from podium.protocol.tcp.link import Dialling, Link
from podium.protocol.tcp.peers import Peer, Peers
from podium.protocol.tcp.sockets import Part, Router
from podium.protocol.tcp.wire import (
    HELLO,
    TO_SERVER,
    WORDS,
    Answer,
    Bye,
    Hello,
    MalformedError,
    Request,
    Welcome,
    parse,
    schema_words,
    words,
)

MOST_ROWS = 4096  # of one request
MOST_SLOTS = 1024  # of one client
DRAIN = 256  # messages taken at once
LENT = 4  # batches that may be out at once without new memory


def batched(schema: Schema, rows: int) -> Schema:
    """The schema of so many rows."""
    return Schema(tuple(Field(field.name, (rows, *field.shape), field.dtype) for field in schema.fields))


class Rows:
    """Rows of a schema as bytes: field after field, without gaps, because the other end copies them anyway."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [(field.shape, np.dtype(field.dtype), field.nbytes) for field in schema.fields]
        self.nbytes = sum(field.nbytes for field in schema.fields)

    def views(self, block: Part, rows: int) -> Iterator[np.ndarray]:
        """Arrays over the bytes of so many rows."""
        start = 0
        for shape, dtype, size in self._fields:
            yield np.ndarray((rows, *shape), dtype, block, start)
            start += rows * size


class TcpInferenceClient(InferenceClient):
    """An actor's end towards one inference worker."""

    def __init__(
        self,
        dialling: Dialling,
        endpoint: str,
        request: Schema,
        reply: Schema,
        client: SenderId,
        rows: Sequence[int],
        limit: float,
    ) -> None:
        if not 1 <= len(rows) <= MOST_SLOTS or not all(1 <= n <= MOST_ROWS for n in rows):
            raise ValueError(f"rows: {list(rows)}, must be 1 to {MOST_SLOTS} slots of 1 to {MOST_ROWS} rows")
        self.counters = Counters()
        self._client, self._rows, self._limit = client, list(rows), limit
        self._requests = [batched(request, n) for n in rows]
        self._replies = Rows(reply)
        self._said = [schema_words(request), schema_words(reply)]
        self._session = secrets.randbits(60)
        self._sequence = 0
        self._out: dict[int, tuple[int, float]] = {}  # slot -> number of its request, when it fails; oldest first
        self._lost: list[int] = []  # slots whose request went down with a server
        largest = max(rows) * self._replies.nbytes + WORDS
        self._link = Link(dialling, endpoint, self._hello, largest, 2 * len(rows) + 64, self.counters)
        self._link.open()

    def _hello(self) -> Hello:
        return Hello("inference", *self._client, self._session, 0, self._rows, self._said)

    def submit(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        check_arrays(self._requests[slot], arrays)
        self._sequence += 1
        self._out.pop(slot, None)
        self._out[slot] = self._sequence, time.monotonic() + self._limit
        if slot in self._lost:
            self._lost.remove(slot)
        message = words(Request(slot, self._sequence))
        # If it does not fit, the server has not read for long: the request fails in time.
        if self._link.send(b"".join((*(np.ascontiguousarray(array).data for array in arrays), message))):
            self.counters.sent += 1

    def poll(self, timeout: float) -> list[Reply]:
        end = time.monotonic() + timeout
        while True:
            replies = [*self._listen(), *self._failed()]
            now = time.monotonic()
            if replies or now >= end:
                return replies
            self._link.renew()
            first = next(iter(self._out.values()))[1] if self._out else end
            self._link.wait(min(end, first, now + 1.0) - now)

    def _listen(self) -> Iterator[Reply]:
        while (news := self._link.receive()) is not None:
            message, block = news
            if isinstance(message, Answer):
                if (rows := self._answered(message, block)) > 0:
                    self.counters.received += 1
                    yield Reply(message.slot, message.version, list(self._replies.views(block, rows)))
            elif not isinstance(message, Welcome):
                self._link.malformed(f"{type(message).__name__} in an inference stream")

    def _answered(self, answer: Answer, block: Part) -> int:
        """Rows of an answer to the slot's request; 0 if that was superseded, failed or answered before."""
        if answer.slot >= len(self._rows) or len(block) != self._rows[answer.slot] * self._replies.nbytes:
            self._link.malformed(f"an answer of {len(block)} bytes to slot {answer.slot}")
            return 0
        if self._out.get(answer.slot, (None,))[0] != answer.sequence:
            return 0
        del self._out[answer.slot]
        return self._rows[answer.slot]

    def _failed(self) -> Iterator[Reply]:
        now = time.monotonic()
        late = [slot for slot, (_, end) in self._out.items() if end <= now]
        for slot in late:
            del self._out[slot]
        lost, self._lost = self._lost, []
        for slot in (*lost, *late):
            yield Reply(slot, Version(0, 0), None)

    def rebind(self, endpoint: str) -> None:
        self._lost += self._out
        self._out.clear()
        self._link.rebind(endpoint)

    def close(self) -> None:
        self._link.close()


class Pending(NamedTuple):
    """A request that has come and is not in a batch yet, or is in one and not answered yet."""

    peer: Peer[None]
    slot: int
    sequence: int
    rows: int
    block: Part


class TcpInferenceServer(InferenceServer):
    """The inference worker's end. Of each slot only the newest request is pending, so clients bound what waits here."""

    def __init__(self, context: zmq.Context, keys: RunKeys, host: str, request: Schema, reply: Schema) -> None:
        self.counters = Counters()
        self._request, self._reply = request, reply
        self._rows = Rows(request)
        self._pending: dict[tuple[Peer[None], int], Pending] = {}
        self._free: dict[int, list[list[np.ndarray]]] = {}  # memory of answered batches, by their padded rows
        self._lent: list[RequestBatch] = []
        self._peers: Peers[None] = Peers("inference", (request, reply), self.counters, _check_slots, self._forget)
        largest = max(HELLO, MOST_ROWS * self._rows.nbytes + WORDS)
        self._router = Router(context, keys, host, largest, 2 * MOST_SLOTS, self._attend)
        self.endpoint = self._router.endpoint
        self._peers.attach(self._router)
        self._router.start()

    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        self._serve()
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
        slots = sum(len(peer.sizes) for peer in self._peers.all())
        return len(self._pending) >= slots or sum(p.rows for p in self._pending.values()) >= max_rows

    def _wait_until(self, end: float, done: Callable[[], bool]) -> bool:
        while not (finished := done()):
            if self._router.closed or (left := end - time.monotonic()) <= 0:
                break
            self._router.wait(left, ())
            self._serve()
        return finished

    def _merge(self, parts: list[Pending], rows: int) -> RequestBatch:
        padded = 1 << (rows - 1).bit_length()
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
                message = words(Answer(part.slot, part.sequence, Version(*version)))
                block = b"".join((*(output[start:end].data for output in outputs), message))
                start = end
                if part.peer.open and self._router.send(part.peer.route, block) == "sent":
                    self.counters.sent += 1
        for place, lent in enumerate(self._lent):
            if lent is batch:
                del self._lent[place]
                self._free.setdefault(len(batch.arrays[0]), []).append(batch.arrays)
                break

    def _attend(self) -> None:
        with self._router.lock:
            if not self._router.closed:
                self._take_all()
                if self._pending:
                    self._router.wake()

    def _serve(self) -> None:
        self._router.used = time.monotonic()
        with self._router.lock:
            if not self._router.closed:
                self._take_all()

    def _take_all(self) -> None:
        for _ in range(DRAIN):
            if (news := self._router.receive(1)) is None:
                break
            route, parts = news
            try:
                self._take(route, parts)
            except MalformedError as error:
                self._peers.complaints.add(route, error)
        self._peers.sweep()

    def _take(self, route: bytes, parts: list[memoryview]) -> None:
        message, size = parse(TO_SERVER, parts[0])
        if len(parts) > 1:
            raise MalformedError("a message of several parts")
        if isinstance(message, Request):
            if (peer := self._peers.known(route)) is not None:
                self._enqueue(peer, message, size, parts[0])
        elif size:
            raise MalformedError(f"{type(message).__name__} with arrays")
        elif isinstance(message, Hello):
            if self._peers.admit(route, message) is not None:
                self._router.send(route, words(Welcome()))
        elif isinstance(message, Bye):
            self._peers.leave(route)
        else:
            raise MalformedError(f"{type(message).__name__} in an inference stream")

    def _enqueue(self, peer: Peer[None], request: Request, size: int, part: Part) -> None:
        if request.slot >= len(peer.sizes):
            raise MalformedError(f"slot {request.slot} of {len(peer.sizes)}")
        rows = peer.sizes[request.slot]
        if size != rows * self._rows.nbytes:
            raise MalformedError(f"a request of {size} bytes for {rows} rows of {self._rows.nbytes}")
        self._pending[peer, request.slot] = Pending(peer, request.slot, request.sequence, rows, part)

    def _forget(self, peer: Peer[None]) -> None:
        for slot in range(len(peer.sizes)):
            self._pending.pop((peer, slot), None)

    def close(self) -> None:
        self._router.close()


def _check_slots(hello: Hello) -> None:
    if not 1 <= len(hello.sizes) <= MOST_SLOTS or max(hello.sizes) > MOST_ROWS:
        raise MalformedError("no slots, too many, or too many rows")
