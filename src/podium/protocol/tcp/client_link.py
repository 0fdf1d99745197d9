"""A client's connection to a server's end: says Hello, hears whether it is welcome, and heals when it broke."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from podium.core.errors import MalformedError, RefusedError, StreamError
from podium.protocol.run_keys import RunKeys
from podium.protocol.streams import Counters
from podium.protocol.tcp.peers import Complaints
from podium.protocol.tcp.sockets import (
    NOBLOCK,
    SNDMORE,
    Part,
    dealer,
    descriptor_of,
    has_input,
    readable,
    receive_parts,
    send_part,
)
from podium.protocol.tcp.wire import TO_CLIENT, TO_SERVER, Again, Bye, Hello, Ping, Refused, Welcome, parse, words

RENEW = 1.0  # seconds without a word after which a client that waits says Hello again
FAREWELL = 50  # milliseconds for a Bye, which is only a courtesy
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


@dataclass(frozen=True)
class Dialling:
    """How clients of a transport connect."""

    context: zmq.Context
    keys: RunKeys
    limit: float  # seconds to wait for the first Welcome


class ClientLink:
    """One client's end of a connection. One thread uses it.

    link = ClientLink(dialling, endpoint, hello, largest, depth, counters)
    welcome = link.open()                      # RefusedError says why not
    while (news := link.receive()) is not None: message, arrays = news
    """

    def __init__(
        self,
        dialling: Dialling,
        endpoint: str,
        hello: Callable[[], Hello],
        largest: int,
        depth: int,
        counters: Counters,
    ) -> None:
        self.endpoint = endpoint
        self._dialling, self._hello = dialling, hello
        self._largest, self._depth = largest, depth
        self._complaints = Complaints(f"client of {endpoint}", counters)
        self._refused: str | None = None
        self.closed = False
        parse(TO_SERVER, words(hello()))  # what the server would not understand is the caller's error
        self._heard = 0.0  # when the last word came, or was said to get one
        self._connect()

    def _connect(self) -> None:
        dialling = self._dialling
        self._socket = dealer(dialling.context, dialling.keys, self.endpoint, self._largest, self._depth)
        self._descriptor = descriptor_of(self._socket)

    def open(self) -> Welcome:
        """Say Hello and wait for the answer, which tells apart a server that is not there from one that refuses us."""
        monitor = self._socket.get_monitor_socket(_FAILED)
        welcome = None
        try:
            welcome, failures = self._first_answer(monitor)
        finally:
            self._socket.disable_monitor()
            monitor.close(linger=0)
            if welcome is None:
                self.closed = True
                self._socket.close(linger=0)
        if welcome is not None:
            return welcome
        if failures:
            raise RefusedError(f"{self.endpoint} has not the key of this run")
        raise StreamError(f"no answer from {self.endpoint} for {self._dialling.limit:g} s")

    def _first_answer(self, monitor: zmq.Socket) -> tuple[Welcome | None, int]:
        end, failures = time.monotonic() + self._dialling.limit, 0
        self.greet()
        while (left := end - time.monotonic()) > 0:
            while (news := self.receive()) is not None:
                if isinstance(news[0], Welcome):
                    return news[0], failures
            while monitor.poll(0):
                failures += 1
                if recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    raise RefusedError(f"{self.endpoint} does not know our key: it is another run's")
            self.wait(min(left, 0.1))
        return None, failures

    def greet(self) -> None:
        """Say Hello, or say it again."""
        self._heard = time.monotonic()
        self.send(words(self._hello()))

    def renew(self) -> None:
        """Say Hello again if there was not a word for long: credits or news may have been lost with a connection."""
        if time.monotonic() - self._heard > RENEW:
            self.greet()

    def rebind(self, endpoint: str) -> None:
        """Leave the old connection and what was on its way there; go on with a new one."""
        self._check()
        self._socket.close(linger=0)
        self.endpoint = endpoint
        self._refused = None
        self._connect()
        self.greet()

    def _check(self) -> None:
        if self.closed:
            raise StreamError(f"the stream to {self.endpoint} was closed")
        if self._refused is not None:
            raise RefusedError(self._refused)

    def receive(self) -> tuple[Any, Part] | None:
        """The next message and the bytes of its arrays, without waiting. Raises RefusedError once that has come."""
        self._check()
        while has_input(self._socket):
            parts = receive_parts(self._socket, 1)
            try:
                if len(parts) != 1:
                    raise MalformedError("a message of several parts")
                message, size = parse(TO_CLIENT, parts[0])
            except MalformedError as error:
                self._complaints.add(b"", error)
                continue
            self._heard = time.monotonic()
            if isinstance(message, Again):
                self.greet()
            elif isinstance(message, Refused):
                self._refused = f"{self.endpoint}: {message.reason}"
                self._check()
            elif not isinstance(message, Ping):
                return message, parts[0][:size]
        return None

    def malformed(self, why: str) -> None:
        """Count a message that cannot be from a server of our kind."""
        self._complaints.add(b"", why)

    def send(self, *parts: Part) -> bool:
        """Send without waiting; False if so much is on its way already that it does not fit."""
        try:
            for part in parts[:-1]:
                send_part(self._socket, part, NOBLOCK | SNDMORE)
            send_part(self._socket, parts[-1])
        except zmq.Again:
            return False
        return True

    def wait(self, timeout: float) -> None:
        """Sleep until a message may have come."""
        if timeout > 0 and not has_input(self._socket):
            readable((self._descriptor,), timeout)

    def close(self) -> None:
        """Leave. Twice is harmless."""
        if not self.closed:
            self.closed = True
            self.send(words(Bye()))
            self._socket.close(linger=FAREWELL)
