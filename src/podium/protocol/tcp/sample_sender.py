"""An actor's end of samples over TCP: fragments are messages, and their credits come back."""

import contextlib
import secrets
import time
from collections import deque

from podium.core.errors import RefusedError, StreamError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Buffer, Counters, FragmentHeader, SampleSender
from podium.protocol.tcp.client_link import ClientLink, Dialling
from podium.protocol.tcp.message_layout import FragmentLayout
from podium.protocol.tcp.wire import HELLO, Credit, FragmentMessage, Hello, Welcome, check_header, schema_words, words

MOST_CREDITS = 4096
SETTLE = 1.0  # seconds for what was committed before `close`


class TcpSampleSender(SampleSender):
    """A buffer is free again when the receiver has released it, so ZeroMQ may send it in place."""

    def __init__(self, dialling: Dialling, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> None:
        if not 1 <= credits <= MOST_CREDITS:
            raise ValueError(f"credits: {credits}, must be 1 to {MOST_CREDITS}")
        self.counters = Counters()
        self._layout = FragmentLayout(schema)
        self._schema_words, self._sender, self._credits = schema_words(schema), sender, credits
        self._session = secrets.randbits(60)
        self._memory: dict[int, memoryview] = {}
        self._buffers: dict[int, Buffer] = {}
        for index in range(credits):
            self._allocate(index)
        self._free = deque(range(credits))
        self._taken: set[int] = set()
        self._out: dict[int, int] = {}  # fragment's number -> buffer, as long as it is not released
        self._next = 0
        self._confirmed = 0  # all before this number were taken by the receiver, or lost
        self._link = ClientLink(dialling, endpoint, self._hello, HELLO, 4 * credits + 256, self.counters)
        self._link.open()

    def _allocate(self, index: int) -> None:
        self._memory[index], arrays = self._layout.allocate()
        self._buffers[index] = Buffer(index, arrays)

    def _hello(self) -> Hello:
        sizes, schemas = [self._credits], [self._schema_words]
        return Hello("samples", *self._sender, self._session, self._next, sizes, schemas)

    def acquire(self, timeout: float) -> Buffer | None:
        if not self._free:  # else there is time to hear of credits, all at once
            self._listen()
            end = time.monotonic() + timeout
            while not self._free:
                if (left := end - time.monotonic()) <= 0:
                    return None
                self._link.renew()
                self._link.wait(min(left, 1.0))
                self._listen()
        index = self._free.popleft()
        self._taken.add(index)
        return self._buffers[index]

    def _listen(self) -> None:
        while (news := self._link.receive()) is not None:
            message = news[0]
            if isinstance(message, Credit):
                for number in message.numbers:
                    if (index := self._out.pop(number, None)) is not None:
                        self._free.append(index)
            elif isinstance(message, Welcome):
                self._reconcile(message)
            else:
                self._link.malformed(f"{type(message).__name__} in a sample stream")

    def _reconcile(self, welcome: Welcome) -> None:
        """What was sent before our Hello and is not held was released or lost: its buffer is free, for good."""
        held = set(welcome.held)
        self._confirmed = max(self._confirmed, welcome.next)
        for number in [n for n in self._out if n < welcome.next and n not in held]:
            index = self._out.pop(number)
            # A closed socket may still be reading the old memory.
            self._allocate(index)
            self._free.append(index)

    def commit(self, buffer: Buffer, header: FragmentHeader) -> None:
        index, number = buffer.index, self._next
        if index not in self._taken:
            raise ValueError(f"buffer {index} was not acquired, or was committed already")
        check_header(header)
        self._taken.discard(index)
        self._out[number] = index
        self._next += 1
        self._send(number, header, buffer)
        self.counters.sent += 1

    def _send(self, number: int, header: FragmentHeader, buffer: Buffer) -> None:
        """From where it is, with its words behind it."""
        memory, size = self._memory[buffer.index], self._layout.plain.nbytes
        text = words(FragmentMessage(number, header))
        memory[size : size + len(text)] = text
        frames = self._layout.frames(buffer.arrays) if self._layout.stacked else ()
        if not self._link.send(memory[: size + len(text)], *frames):
            raise StreamError(f"no room for a fragment in the socket, which has room for all {self._credits} credits")

    def rebind(self, endpoint: str) -> None:
        self._link.rebind(endpoint)

    def close(self) -> None:
        """Waits, at most `SETTLE` seconds, until the receiver says that it has all: what a closed connection has not
        yet handed over, TCP may throw away."""
        if self._link.closed:
            return
        if self._out:
            end = time.monotonic() + SETTLE
            with contextlib.suppress(RefusedError):  # then there is nothing to wait for
                self._link.greet()
                while self._out and self._confirmed < self._next and (left := end - time.monotonic()) > 0:
                    self._link.wait(min(left, 0.1))
                    self._listen()
        self._link.close()
