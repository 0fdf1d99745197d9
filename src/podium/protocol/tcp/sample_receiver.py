"""The learner's end of samples over TCP: any number of senders, and a credit back for each release."""

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial

from podium.core.errors import MalformedError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Counters, FragmentHeader, Received, SampleReceiver
from podium.protocol.tcp.message_layout import FragmentLayout
from podium.protocol.tcp.peers import Peer
from podium.protocol.tcp.reception import Desk, Reception
from podium.protocol.tcp.sample_sender import MOST_CREDITS
from podium.protocol.tcp.sockets import ZERO_COPY, Listening
from podium.protocol.tcp.wire import WORDS, Credit, FragmentMessage, Hello, Welcome, check_header, words

AHEAD = 1 << 26  # bytes of one sender that ZeroMQ may hold for us
OWING = 5e-3  # seconds that a sender may wait for its credit, so that several go back together


@dataclass
class SenderCredit:
    """What a receiver knows of a sender: fragments that it has and has not released, and credits not yet sent."""

    credits: int
    next: int  # the least number that its next fragment can have
    held: set[int] = field(default_factory=set)
    owed: list[int] = field(default_factory=list)


Waiting = tuple[Peer[SenderCredit], int, FragmentHeader, list[memoryview]]
"""A fragment that has come and was not received yet: peer, number, header, parts."""


class TcpSampleReceiver(SampleReceiver):
    """One thread may receive while another releases or asks for the senders: neither waits for the other.

    Credits go back together where that delays no sender for long: half of a sender's at once, after `OWING` seconds, or
    when the receiver sleeps.
    """

    def __init__(self, listening: Listening, schema: Schema) -> None:
        self.counters = Counters()
        self._layout = layout = FragmentLayout(schema)
        self._parts = 1 + len(layout.stacked)
        self._queue: deque[Waiting] = deque()
        self._debts: set[Peer[SenderCredit]] = set()
        self._due = math.inf  # when debts are paid
        # Credits bound honest senders. For others: so many messages, decrypted ahead while we do something else.
        depth = max(64, AHEAD // max(layout.plain.nbytes, ZERO_COPY))
        self._reception: Reception[SenderCredit] = Reception(
            listening,
            self.counters,
            Desk(
                stream="samples",
                schemas=(schema,),
                kind=FragmentMessage,
                largest=layout.largest,
                depth=depth,
                fresh=_open_credit,
                take=self._enqueue,
                welcome=lambda peer, hello: Welcome(hello.next, sorted(peer.state.held)),
                parts=self._parts,
                settle=self._settle,
                ready=self._queue,
            ),
        )
        self._router, self._peers = self._reception.router, self._reception.peers
        self.endpoint = self._reception.endpoint
        self._reception.start()

    def receive(self, timeout: float) -> Received | None:
        end = None
        while True:
            if not self._queue:
                end = time.monotonic() + timeout if end is None else end
                if not self._wait(end):
                    return None
            peer, number, header, parts = self._queue.popleft()
            try:
                arrays = self._layout.arrays(parts)  # frames are stacked again here, not under the lock
            except MalformedError as error:
                with self._router.lock:
                    self._peers.complaints.add(peer.route, error)
                self._release(peer, number)  # its sender waits for the credit
                continue
            self.counters.received += 1
            return Received(peer.sender, header, arrays, partial(self._release, peer, number))

    def _wait(self, end: float) -> bool:
        """Whether there is a fragment before the time is over."""
        while True:
            if (left := min(end, self._due) - time.monotonic()) > 0:
                self._router.wait(left, self._queue)
            self._reception.serve()
            if self._queue:
                return True
            if self._router.closed or time.monotonic() >= end:
                self._pay_all()
                return False

    def _enqueue(self, peer: Peer[SenderCredit], message: FragmentMessage, size: int, parts: list[memoryview]) -> None:
        credit, number = peer.state, message.number
        if size != self._layout.plain.nbytes or len(parts) != self._parts or len(parts[0]) > size + WORDS:
            raise MalformedError(f"a fragment of {len(parts)} parts and {size} bytes")
        if number < credit.next:
            raise MalformedError(f"fragment {number} comes when {credit.next} is next")
        if len(credit.held) >= credit.credits:
            raise MalformedError(f"more fragments than {credit.credits} credits")
        check_header(message.header)
        credit.next = number + 1
        credit.held.add(number)
        self._queue.append((peer, number, message.header, parts))

    def _release(self, peer: Peer[SenderCredit], number: int) -> None:
        credit, router = peer.state, self._router
        with router.lock:
            if router.closed or number not in credit.held:
                return
            credit.held.remove(number)
            credit.owed.append(number)
            if len(credit.owed) * 2 >= credit.credits or router.sleeping:
                self._pay(peer)
                if router.sleeping and router.pending():
                    router.wake()
            if credit.owed and peer not in self._debts:
                if not self._debts:
                    self._due = time.monotonic() + OWING
                self._debts.add(peer)

    def _pay(self, peer: Peer[SenderCredit]) -> None:
        credit = peer.state
        if credit.owed and self._router.send(peer.route, words(Credit(credit.owed))) != "full":
            credit.owed = []

    def _settle(self) -> None:
        """Under the lock: pay what has been owed long enough."""
        now = time.monotonic() if self._debts else 0.0
        if now >= self._due:
            for peer in self._debts:
                self._pay(peer)
            self._debts = {peer for peer in self._debts if peer.state.owed}
            self._due = now + OWING if self._debts else math.inf

    def _pay_all(self) -> None:
        """A receiver that does not wait for fragments does not wait with credits, either."""
        if self._debts:
            with self._router.lock:
                self._due = 0.0
                if not self._router.closed:
                    self._settle()

    def senders(self) -> dict[SenderId, int]:
        self._reception.attend()
        with self._router.lock:
            # A copy, which is made at once: a thread that receives takes from the queue without the lock.
            waiting = Counter(peer.sender for peer, *_ in self._queue.copy())
            return {**{peer.sender: 0 for peer in self._peers.all()}, **waiting}

    def close(self) -> None:
        self._reception.close()


def _open_credit(hello: Hello) -> SenderCredit:
    if len(hello.sizes) != 1 or hello.sizes[0] > MOST_CREDITS:
        raise MalformedError(f"credits {hello.sizes[:9]}")
    return SenderCredit(hello.sizes[0], hello.next)
