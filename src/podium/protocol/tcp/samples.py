"""Samples over TCP: a fragment is one message, and a release sends its credit back."""

import contextlib
import secrets
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import zmq

from podium.protocol.frames import FramesError
from podium.protocol.keys import RunKeys
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import (
    Buffer,
    Counters,
    FragmentHeader,
    Received,
    RefusedError,
    SampleReceiver,
    SampleSender,
    StreamError,
)
from podium.protocol.tcp.layout import Layout
from podium.protocol.tcp.link import Dialling, Link
from podium.protocol.tcp.peers import Peer, Peers
from podium.protocol.tcp.sockets import ZERO_COPY, Router
from podium.protocol.tcp.wire import (
    HELLO,
    TO_SERVER,
    WORDS,
    Bye,
    Credit,
    Fragment,
    Hello,
    MalformedError,
    Welcome,
    check_header,
    parse,
    schema_words,
    words,
)

MOST_CREDITS = 4096
DRAIN = 256  # messages taken at once, so that the lock is free for releases in between
SETTLE = 1.0  # seconds for what was committed before `close`
AHEAD = 1 << 26  # bytes of one sender that ZeroMQ may hold for us
GRACE = 0.2  # seconds for what a dead sender's host still has on the wire


class TcpSampleSender(SampleSender):
    """An actor's end. A buffer is free again when the receiver has released it, so ZeroMQ may send it in place."""

    def __init__(self, dialling: Dialling, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> None:
        if not 1 <= credits <= MOST_CREDITS:
            raise ValueError(f"credits: {credits}, must be 1 to {MOST_CREDITS}")
        self.counters = Counters()
        self._layout = Layout(schema)
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
        self._link = Link(dialling, endpoint, self._hello, HELLO, 4 * credits + 256, self.counters)
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
        index = buffer.index
        if index not in self._taken:
            raise ValueError(f"buffer {index} was not acquired, or was committed already")
        if header.slot < 0 or header.sequence < 0 or header.steps < 0 or header.produced < 0:
            raise ValueError(f"numbers of a header are not negative: {header}")
        text = words(Fragment(self._next, header))
        if len(text) > WORDS:
            raise ValueError(f"policy: a name of {len(header.policy)} characters is too long")
        memory, size = self._memory[index], self._layout.plain.nbytes
        whole = size + len(text)
        if whole < ZERO_COPY:
            part = b"".join((memory[:size], text))
        else:
            memory[size:whole] = text
            part = memory[:whole]
        self._taken.discard(index)
        self._out[self._next] = index
        self._next += 1
        frames = self._layout.frames(buffer.arrays) if self._layout.stacked else ()
        if not self._link.send(part, *frames):
            raise StreamError(f"no room for a fragment in the socket, which has room for all {self._credits} credits")
        self.counters.sent += 1

    def rebind(self, endpoint: str) -> None:
        self._link.rebind(endpoint)

    def close(self) -> None:
        """Waits, at most `SETTLE` seconds, until the receiver says that it has all: what a closed connection has not
        yet handed over, TCP may throw away."""
        if self._out and not self._link.closed:
            end = time.monotonic() + SETTLE
            with contextlib.suppress(RefusedError):  # then there is nothing to wait for
                self._link.greet()
                while self._out and self._confirmed < self._next and (left := end - time.monotonic()) > 0:
                    self._link.wait(min(left, 0.1))
                    self._listen()
        self._link.close()


@dataclass
class Ledger:
    """What a receiver knows of a sender: fragments that it has and has not released, and credits not yet sent."""

    credits: int
    next: int  # the least number that its next fragment can have
    held: set[int] = field(default_factory=set)
    owed: list[int] = field(default_factory=list)


class Waiting(NamedTuple):
    """A fragment that has come and was not received yet."""

    peer: Peer[Ledger]
    fragment: Fragment
    parts: list[memoryview]


class TcpSampleReceiver(SampleReceiver):
    """The learner's end. One thread may receive while another releases: neither waits for the other.

    Credits go back together where that delays nobody: half of a sender's at once, or when the receiver sleeps.
    """

    def __init__(self, context: zmq.Context, keys: RunKeys, host: str, schema: Schema) -> None:
        self.counters = Counters()
        self._layout = Layout(schema)
        self._parts = 1 + len(self._layout.stacked)
        self._queue: deque[Waiting] = deque()
        self._debts: set[Peer[Ledger]] = set()
        self._peers: Peers[Ledger] = Peers("samples", (schema,), self.counters, _open_ledger)
        # Credits bound honest senders. For others: so many messages, decrypted ahead while we do something else.
        depth = min(1024, max(64, AHEAD // max(self._layout.plain.nbytes, 1)))
        self._router = Router(context, keys, host, self._layout.largest, depth, self._attend)
        self.endpoint = self._router.endpoint
        self._peers.attach(self._router)
        self._router.start()

    def receive(self, timeout: float) -> Received | None:
        end = 0.0
        while True:
            while self._queue:
                waiting = self._queue.popleft()
                if (received := self._unpacked(waiting)) is not None:
                    return received
            self._router.used = now = time.monotonic()
            with self._router.lock:
                self._serve()
            if self._queue:
                continue
            end = end or now + timeout
            if self._router.closed or now >= end:
                return None
            self._router.wait(end - now, self._queue)

    def _unpacked(self, waiting: Waiting) -> Received | None:
        """Frames are stacked again here, not under the lock."""
        try:
            arrays = self._layout.arrays(waiting.parts)
        except FramesError as error:
            with self._router.lock:
                self._peers.complaints.add(waiting.peer.route, error)
            return None
        self.counters.received += 1
        peer, fragment = waiting.peer, waiting.fragment
        return Received(peer.sender, fragment.header, arrays, partial(self._release, peer, fragment.number))

    def _attend(self) -> None:
        with self._router.lock:
            if not self._router.closed:
                self._serve()
                if self._queue:
                    self._router.wake()

    def _serve(self) -> None:
        """Under the lock: take what has come, pay what is owed."""
        if self._router.closed:
            return
        for _ in range(DRAIN):
            if (news := self._router.receive(self._parts)) is None:
                break
            route, parts = news
            try:
                self._take(route, parts)
            except MalformedError as error:
                self._peers.complaints.add(route, error)
        for peer in self._debts:
            self._pay(peer)
        self._debts = {peer for peer in self._debts if peer.state.owed}
        self._peers.sweep()

    def _take(self, route: bytes, parts: list[memoryview]) -> None:
        message, size = parse(TO_SERVER, parts[0])
        if isinstance(message, Fragment):
            if (peer := self._peers.known(route)) is not None:
                self._enqueue(peer, message, size, parts)
        elif size or len(parts) > 1:
            raise MalformedError(f"{type(message).__name__} with arrays")
        elif isinstance(message, Hello):
            if (peer := self._peers.admit(route, message)) is not None:
                self._router.send(route, words(Welcome(message.next, sorted(peer.state.held))))
        elif isinstance(message, Bye):
            self._peers.leave(route)
        else:
            raise MalformedError(f"{type(message).__name__} in a sample stream")

    def _enqueue(self, peer: Peer[Ledger], fragment: Fragment, size: int, parts: list[memoryview]) -> None:
        ledger = peer.state
        if size != self._layout.plain.nbytes or len(parts) != self._parts or len(parts[0]) > size + WORDS:
            raise MalformedError(f"a fragment of {len(parts)} parts and {size} bytes")
        if fragment.number < ledger.next:
            raise MalformedError(f"fragment {fragment.number} comes when {ledger.next} is next")
        if len(ledger.held) >= ledger.credits:
            raise MalformedError(f"more fragments than {ledger.credits} credits")
        check_header(fragment.header)
        ledger.next = fragment.number + 1
        ledger.held.add(fragment.number)
        self._queue.append(Waiting(peer, fragment, parts))

    def _release(self, peer: Peer[Ledger], number: int) -> None:
        ledger, router = peer.state, self._router
        with router.lock:
            if router.closed or number not in ledger.held:
                return
            ledger.held.discard(number)
            ledger.owed.append(number)
            if len(ledger.owed) * 2 >= ledger.credits or router.sleeping:
                self._pay(peer)
                if router.sleeping and router.pending():
                    router.wake()
            else:
                self._debts.add(peer)

    def _pay(self, peer: Peer[Ledger]) -> None:
        ledger = peer.state
        if ledger.owed and self._router.send(peer.route, words(Credit(ledger.owed))) != "full":
            ledger.owed = []

    def senders(self) -> dict[SenderId, int]:
        with self._router.lock:
            self._serve()
            waiting = Counter(waiting.peer.sender for waiting in self._queue)
            return {**{peer.sender: 0 for peer in self._peers.all()}, **waiting}

    def retire(self, sender: SenderId) -> None:
        """What has come by now is received; a dead host's last words are waited for, a moment."""
        end = time.monotonic() + GRACE
        while True:
            with self._router.lock:
                self._serve()
                peer = self._peers.find(sender)
                if peer is None or not self._peers.reachable(peer) or time.monotonic() > end:
                    self._peers.retire(sender)
                    return
            self._router.wait(0.01, ())

    def close(self) -> None:
        self._router.close()


def _open_ledger(hello: Hello) -> Ledger:
    if len(hello.sizes) != 1 or hello.sizes[0] > MOST_CREDITS:
        raise MalformedError(f"credits {hello.sizes[:9]}")
    return Ledger(hello.sizes[0], hello.next)
