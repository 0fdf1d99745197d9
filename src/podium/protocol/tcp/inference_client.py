"""An actor's end of inference over TCP: numbered requests, and answers that name the request they are for."""

import secrets
import time
from collections.abc import Iterator, Sequence

import numpy as np

from podium.core.transports import TCP
from podium.protocol.batches import batched
from podium.protocol.schema import Schema, SenderId, Version, check_arrays
from podium.protocol.streams import Counters, InferenceClient, Reply
from podium.protocol.tcp.client_link import ClientLink, Dialling
from podium.protocol.tcp.message_layout import RowLayout
from podium.protocol.tcp.sockets import Part
from podium.protocol.tcp.wire import WORDS, AnswerMessage, Hello, RequestMessage, Welcome, schema_words, words

MOST_SLOTS = 1024  # of one client


class TcpInferenceClient(InferenceClient):
    """Towards one inference worker."""

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
        if not 1 <= len(rows) <= MOST_SLOTS or not all(1 <= n <= TCP.most_rows for n in rows):
            raise ValueError(f"rows: {list(rows)}, must be 1 to {MOST_SLOTS} slots of 1 to {TCP.most_rows} rows")
        self.counters = Counters()
        self._client, self._rows, self._limit = client, list(rows), limit
        self._requests = [batched(request, n) for n in rows]
        self._replies = RowLayout(reply)
        self._said = [schema_words(request), schema_words(reply)]
        self._session = secrets.randbits(60)
        self._sequence = 0
        self._out: dict[int, tuple[int, float]] = {}  # slot -> number of its request, when it fails; oldest first
        self._lost: list[int] = []  # slots whose request went down with a server
        largest = max(rows) * self._replies.nbytes + WORDS
        self._link = ClientLink(dialling, endpoint, self._hello, largest, 2 * len(rows) + 64, self.counters)
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
        message = words(RequestMessage(slot, self._sequence))
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
            if isinstance(message, AnswerMessage):
                if (rows := self._answered(message, block)) > 0:
                    self.counters.received += 1
                    yield Reply(message.slot, message.version, list(self._replies.views(block, rows)))
            elif not isinstance(message, Welcome):
                self._link.malformed(f"{type(message).__name__} in an inference stream")

    def _answered(self, answer: AnswerMessage, block: Part) -> int:
        """RowLayout of an answer to the slot's request; 0 if that was superseded, failed or answered before."""
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
