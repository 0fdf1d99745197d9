"""Where a server's end meets its clients: binds, takes what comes, counts what is malformed, and closes."""

import time
from collections.abc import Callable, Sequence, Sized
from typing import Any, Generic, NamedTuple, TypeVar

from podium.core.errors import MalformedError
from podium.protocol.schema import Schema
from podium.protocol.streams import Counters
from podium.protocol.tcp.peers import Peer, Peers
from podium.protocol.tcp.sockets import Listening, Router
from podium.protocol.tcp.wire import TO_SERVER, Bye, Hello, Stream, Welcome, parse, words

DRAIN = 256  # messages taken at once, so that the lock is free for others in between

State = TypeVar("State")


class Desk(NamedTuple, Generic[State]):
    """What is special about a stream. Its functions are called under the lock, and raise MalformedError.

    take(peer, message, size, parts)      # size: bytes of arrays in the first part
    """

    stream: Stream
    schemas: Sequence[Schema]
    kind: type  # of the messages that clients send once they are welcome
    largest: int  # bytes of a part
    depth: int  # messages that ZeroMQ may hold for each client
    fresh: Callable[[Hello], State]  # what is known of a new client
    take: Callable[[Peer[State], Any, int, list[memoryview]], None]
    welcome: Callable[[Peer[State], Hello], Welcome]
    parts: int = 1  # of a message, at most
    left: Callable[[Peer[State]], None] = lambda _: None
    settle: Callable[[], None] = lambda: None  # after all that had come was taken
    ready: Sized = ()  # not empty: the owner has something to wake up for


class Reception(Generic[State]):
    """A server's socket and its clients.

    reception = Reception(listening, counters, Desk("samples", ...))
    reception.start()                     # from now on the desk may be called
    reception.serve()                     # the owner, whenever it has time; else the router's own thread does it
    """

    def __init__(self, listening: Listening, counters: Counters, desk: Desk[State]) -> None:
        self._desk = desk
        self.router = Router(listening, desk.largest, desk.depth, self.attend)
        self.endpoint = self.router.endpoint
        self.peers: Peers[State] = Peers(desk.stream, desk.schemas, counters, desk.fresh, desk.left, self.router)

    def start(self) -> None:
        """The owner is complete."""
        self.router.start()

    def serve(self) -> None:
        """As the owner: handle what has come."""
        self.router.used = time.monotonic()
        with self.router.lock:
            self.take()

    def attend(self) -> None:
        """From any thread: handle what has come, and wake the owner if there is something for it."""
        with self.router.lock:
            self.take()
            if self._desk.ready:
                self.router.wake()

    def take(self) -> None:
        """Under the lock: handle what has come."""
        if self.router.closed:
            return
        for _ in range(DRAIN):
            if (news := self.router.receive(self._desk.parts)) is None:
                break
            route, parts = news
            try:
                self._handle(route, parts)
            except MalformedError as error:
                self.peers.complaints.add(route, error)
        self._desk.settle()
        self.peers.sweep()

    def _handle(self, route: bytes, parts: list[memoryview]) -> None:
        if len(parts) > self._desk.parts:
            raise MalformedError("a message of too many parts")
        message, size = parse(TO_SERVER, parts[0])
        if isinstance(message, self._desk.kind):
            if (peer := self.peers.known(route)) is not None:
                self._desk.take(peer, message, size, parts)
        elif size or len(parts) > 1:
            raise MalformedError(f"{type(message).__name__} with arrays")
        elif isinstance(message, Hello):
            if (peer := self.peers.admit(route, message)) is not None:
                self.router.send(route, words(self._desk.welcome(peer, message)))
        elif isinstance(message, Bye):
            self.peers.leave(route)
        else:
            raise MalformedError(f"{type(message).__name__} in a {self._desk.stream} stream")

    def close(self) -> None:
        """Leave. Twice is harmless; a wait in another thread ends."""
        self.router.close()
