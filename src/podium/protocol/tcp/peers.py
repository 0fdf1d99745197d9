"""Who is connected to a server's end. Clients say who they are before anything else; a newer incarnation replaces an
older."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from podium.core.errors import MalformedError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Counters
from podium.protocol.tcp.sockets import Router
from podium.protocol.tcp.wire import Again, Hello, Ping, Refused, Stream, schema_difference, words

logger = logging.getLogger(__name__)

MOST = 4096  # clients of one end
SWEEP = 5.0  # seconds between looking who is gone; whoever is at two looks is forgotten
_PING, _AGAIN = words(Ping()), words(Again())

State = TypeVar("State")


@dataclass(eq=False)
class Peer(Generic[State]):
    """One client, and what this stream knows of it. Its route changes when it connects again."""

    sender: SenderId
    session: int
    sizes: list[int]
    route: bytes
    state: State
    open: bool = True  # False: refused from now on
    missing: bool = False  # there was no way to it when we looked last


class Complaints:
    """Counts what was malformed, and logs it: at most once a second for a client, whatever it sends."""

    def __init__(self, end: str, counters: Counters) -> None:
        self._end, self._counters = end, counters
        self._logged: dict[bytes, float] = {}

    def add(self, route: bytes, why: object) -> None:
        """One more from this route."""
        self._counters.malformed += 1
        now = time.monotonic()
        if now - self._logged.get(route, -1.0) < 1.0:
            return
        if len(self._logged) >= MOST:
            self._logged.clear()
        self._logged[route] = now
        logger.warning("%s: malformed message from %s: %.200s", self._end, route.hex(), why)


@dataclass
class Peers(Generic[State]):
    """The clients of one server's end, all of it under its router's lock.

    `fresh` makes what the stream knows of a new client, or raises MalformedError if its sizes cannot be; `left` is told
    of clients that went, or lost their place.
    """

    stream: Stream
    schemas: Sequence[Schema]
    counters: Counters
    fresh: Callable[[Hello], State]
    left: Callable[[Peer[State]], None]
    router: Router
    complaints: Complaints = field(init=False)
    _routes: dict[bytes, Peer[State]] = field(default_factory=dict)
    _names: dict[int, Peer[State]] = field(default_factory=dict)  # worker, or session where clients have no names
    _oldest: dict[int, int] = field(default_factory=dict)  # worker -> incarnation that is still welcome
    _swept: float = 0.0

    def __post_init__(self) -> None:
        self.complaints = Complaints(f"{self.stream} {self.router.endpoint}", self.counters)

    def all(self) -> list[Peer[State]]:
        """Who is welcome now."""
        return list(self._names.values())

    def known(self, route: bytes) -> Peer[State] | None:
        """Who speaks; None if its message must be dropped: one that was refused is told so again.

        Raises MalformedError if it has not said Hello: it is asked to.
        """
        peer = self._routes.get(route)
        if peer is None:
            self.router.send(route, _AGAIN)
            raise MalformedError("a message before Hello")
        if peer.open:
            return peer
        self._refuse(route, "your place is taken")
        return None

    def admit(self, route: bytes, hello: Hello) -> Peer[State] | None:
        """Answer a Hello: the client, or None if it was refused, and told why. The caller says Welcome."""
        peer = self._routes.get(route)
        if peer is not None and peer.session != hello.session:
            raise MalformedError("another name on a connection that has one")
        name = hello.session if self.stream == "parameters" else hello.worker
        old = self._names.get(name)
        if old is not None and old.session == hello.session and old.sender == hello.sender:
            self._routes.pop(old.route, None)
            self._routes[route] = old
            old.route, old.missing = route, False
            return old
        if (reason := self._objection(hello)) is not None:
            self._refuse(route, reason)
            return None
        state = self.fresh(hello)
        if old is not None:
            self._dismiss(name, old)
            self._refuse(old.route, f"incarnation {hello.incarnation} of worker {hello.worker} is here")
        if self.stream != "parameters":
            self._oldest[hello.worker] = hello.incarnation
        peer = Peer(hello.sender, hello.session, hello.sizes, route, state)
        self._routes[route] = self._names[name] = peer
        return peer

    def _objection(self, hello: Hello) -> str | None:
        if hello.stream != self.stream:
            return f"this is a {self.stream} stream, not {hello.stream}"
        if len(hello.schemas) != len(self.schemas):
            return f"{len(self.schemas)} schemas against {len(hello.schemas)}"
        for schema, said in zip(self.schemas, hello.schemas, strict=True):
            if (difference := schema_difference(schema, said)) is not None:
                return f"another schema: {difference}"
        if hello.incarnation < (oldest := self._oldest.get(hello.worker, 0)):
            return f"incarnation {hello.incarnation} of worker {hello.worker}: only {oldest} and newer are welcome"
        if len(self._routes) >= MOST:
            return f"{MOST} clients are here already"
        return None

    def _refuse(self, route: bytes, reason: str) -> None:
        self.counters.refused += 1
        self.router.send(route, words(Refused(" ".join(reason.split())[:500])))

    def _dismiss(self, name: int, peer: Peer[State]) -> None:
        del self._names[name]
        peer.open = False
        self.left(peer)

    def leave(self, route: bytes) -> None:
        """The client said Bye, or there is no way to it any more."""
        peer = self._routes.pop(route, None)
        if peer is not None and peer.open:
            name = peer.session if self.stream == "parameters" else peer.sender.worker
            self._dismiss(name, peer)

    def sweep(self) -> None:
        """Now and then: forget whose connection is gone, unless it has only just broken, and may be made anew."""
        now = time.monotonic()
        if now - self._swept > SWEEP:
            self._swept = now
            for peer in list(self._routes.values()):
                gone = self.router.send(peer.route, _PING) == "gone"
                if gone and peer.missing:
                    self.leave(peer.route)
                peer.missing = gone
