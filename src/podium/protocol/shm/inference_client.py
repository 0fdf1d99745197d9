"""The actor's end of an inference stream over shared memory."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from podium.core.errors import RefusedError, StreamError
from podium.protocol.batches import batched
from podium.protocol.schema import Schema, SenderId, Version, check_arrays
from podium.protocol.shm.futex import order
from podium.protocol.shm.rendezvous import Rendezvous, path_of
from podium.protocol.shm.request_slots import ClientSlots, ClientText, ServerText, area_bytes, area_clients, area_path
from podium.protocol.shm.segment import attach, create, schema_of, schema_text
from podium.protocol.streams import Counters, InferenceClient, Reply

NOBODY = Version(-1, -1)  # the version of a request that failed


class ShmInferenceClient(InferenceClient):
    """The actor's end."""

    def __init__(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> None:
        self.counters = Counters()
        self._schemas = request, reply
        self._client = client
        self._rows = tuple(rows)
        self._limit = limit
        self._deadlines: dict[int, float] = {}  # of the slots whose request is out
        self._area: ClientSlots | None = None
        self._requests = [batched(request, n) for n in self._rows]
        self._join(path_of(endpoint))

    def _join(self, server: Path) -> None:
        """Make our area beside a server, and tell it."""
        request, reply = self._schemas
        try:
            text = attach(server).describe(ServerText)
        except FileNotFoundError:
            raise StreamError(f"no inference server at {server}: it has gone") from None
        for theirs, mine in ((text.request, request), (text.reply, reply)):
            if difference := schema_of(theirs).difference(mine):
                raise RefusedError(f"the inference server takes another schema: {difference}")
        incarnations = [other for other in area_clients(server) if other.worker == self._client.worker]
        if incarnations and incarnations[-1].incarnation > self._client.incarnation:
            raise RefusedError(f"{self._client} was replaced by {incarnations[-1]}")
        about = ClientText(*self._client, self._rows, schema_text(request), schema_text(reply))
        try:
            path = area_path(server, self._client)
            self._area = ClientSlots(create(path, about, area_bytes(request, reply, self._rows)))
        except FileExistsError:
            raise RefusedError(f"{self._client} is a client of this server already") from None
        self._server = server
        self._rendezvous = Rendezvous(server.with_name(f"{server.name}.rendezvous"))
        self._rendezvous.announce()

    def _connected(self) -> ClientSlots:
        if self._area is None:
            raise StreamError(f"{self._client} has left its inference server")
        return self._area

    def submit(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        """An odd number while it is written, so that no server takes half of it."""
        check_arrays(self._requests[slot], arrays)
        _, asked, _, request, _ = self._connected().slots[slot]
        number = asked[0]
        if not number & 1:
            asked[0] = number = number + 1
        order()
        for target, array in zip(request, arrays, strict=True):
            target[...] = array
        order()
        asked[0] = number + 1
        self._deadlines[slot] = time.monotonic() + self._limit
        self._rendezvous.wakeup.wake()
        self.counters.sent += 1

    def poll(self, timeout: float) -> list[Reply]:
        """Replies first; then what was out too long fails."""
        if not self._deadlines:
            timeout = 0.0
        elif timeout > 0:
            timeout = max(0.0, min(timeout, min(self._deadlines.values()) - time.monotonic()))
        replies = self._connected().wakeup.wait(self._replies, timeout) or []
        if self._deadlines:
            now = time.monotonic()
            replies += [self._fail(slot) for slot, end in list(self._deadlines.items()) if end <= now]
        return replies

    def _replies(self) -> list[Reply] | None:
        """What has been answered."""
        slots, found = self._connected().slots, []
        for slot in self._deadlines:
            _, asked, answered, _, arrays = slots[slot]
            if answered[0] == asked[0]:
                order()
                found.append(Reply(slot, Version(answered[1], answered[2]), arrays))
        for reply in found:
            del self._deadlines[reply.slot]
        self.counters.received += len(found)
        return found or None

    def _fail(self, slot: int) -> Reply:
        """Give a request up: its number becomes odd, which no reply has."""
        self._connected().slots[slot].asked[0] |= 1
        del self._deadlines[slot]
        return Reply(slot, NOBODY, None)

    def rebind(self, endpoint: str) -> None:
        """Leave the old server, join the new one; what was out fails at the next poll."""
        out = list(self._deadlines)
        if path_of(endpoint) != self._server:
            self._leave()
            self._join(path_of(endpoint))
        slots = self._connected().slots
        for slot in out:
            slots[slot].asked[0] |= 1  # so that it is neither served nor answered
            self._deadlines[slot] = 0.0

    def _leave(self) -> None:
        if self._area is not None:
            self._area.closed[0] = 1
            self._area.segment.unlink()
            self._area = None
            self._rendezvous.announce()

    def close(self) -> None:
        """Take our area away."""
        self._leave()
        self._deadlines.clear()
