"""Parameters over TCP: whoever wants a newer version asks once, and gets it when there is one."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import zmq

from podium.core.errors import MalformedError
from podium.protocol.schema import Schema, Version, check_arrays
from podium.protocol.streams import Counters, ParameterPublisher, ParameterReader
from podium.protocol.tcp.client_link import ClientLink, Dialling
from podium.protocol.tcp.peers import Peer
from podium.protocol.tcp.reception import Desk, Reception
from podium.protocol.tcp.sockets import Listening
from podium.protocol.tcp.wire import HELLO, NONE, WORDS, Announce, Fetch, Hello, Values, Welcome, schema_words, words

News = tuple[Version, list[np.ndarray]]


@dataclass
class Subscription:
    """What a publisher knows of a reader: whether it waits for the next version, or was told that there is one."""

    wants: bool = False
    told: bool = False


class TcpParameterPublisher(ParameterPublisher):
    """The learner's end of one policy. A reader that does not read costs one version and a word, ever."""

    def __init__(self, listening: Listening, policy: str, schema: Schema) -> None:
        self.counters = Counters()
        self.policy = policy
        self._schema = schema
        self._newest: tuple[Version, zmq.Frame] | None = None
        self._reception: Reception[Subscription] = Reception(
            listening,
            self.counters,
            Desk(
                stream="parameters",
                schemas=(schema,),
                kind=Fetch,
                largest=HELLO,
                depth=4,  # two versions for a reader that asks and does not read are enough
                fresh=lambda _: Subscription(),
                take=self._fetched,
                welcome=self._welcome,
            ),
        )
        self._router, self._peers = self._reception.router, self._reception.peers
        self.endpoint = self._reception.endpoint
        self._reception.start()

    def publish(self, version: Version, arrays: Sequence[np.ndarray]) -> None:
        check_arrays(self._schema, arrays)
        if self._newest is not None and version <= self._newest[0]:
            raise ValueError(f"version {tuple(version)} is not newer than {tuple(self._newest[0])}")
        text = words(Values(Version(*version)))
        block = bytearray(self._schema.nbytes + len(text))
        for view, array in zip(self._schema.views(block), arrays, strict=True):
            view[...] = array
        block[self._schema.nbytes :] = text
        frame = zmq.Frame(block)  # one for all readers; large ones are never copied again
        with self._router.lock:
            if self._router.closed:
                return
            self._newest = Version(*version), frame
            for peer in self._peers.all():
                self._hand(peer) if peer.state.wants else self._tell(peer)
            if self._router.pending():
                self._reception.take()

    def _fetched(self, peer: Peer[Subscription], fetch: Fetch, size: int, parts: list[memoryview]) -> None:
        if size:
            raise MalformedError("Fetch with arrays")
        self.counters.received += 1
        peer.state.wants = True
        if self._newest is not None and self._newest[0] > fetch.read:
            self._hand(peer)

    def _hand(self, peer: Peer[Subscription]) -> None:
        assert self._newest is not None
        outcome = self._router.send(peer.route, self._newest[1])
        if outcome == "sent":
            peer.state.wants = peer.state.told = False
            self.counters.sent += 1
        elif outcome == "gone":
            self._peers.leave(peer.route)

    def _tell(self, peer: Peer[Subscription]) -> None:
        """It has a version that it has not asked beyond: it may take long to look, and should know this one is old."""
        assert self._newest is not None
        if not peer.state.told:
            outcome = self._router.send(peer.route, words(Announce(self._newest[0])))
            peer.state.told = outcome == "sent"
            if outcome == "gone":
                self._peers.leave(peer.route)

    def _welcome(self, peer: Peer[Subscription], hello: Hello) -> Welcome:
        """It asks again: what it asked for, and what it was told, may have been lost with a connection."""
        peer.state.wants = peer.state.told = False
        return Welcome()

    def close(self) -> None:
        self._reception.close()


class TcpParameterReader(ParameterReader):
    """Anybody's end of one policy, from its first `read` on. One request for what is newer is always out."""

    def __init__(self, dialling: Dialling, endpoint: str, schema: Schema) -> None:
        self.counters = Counters()
        self._schema = schema
        self._schema_words = schema_words(schema)
        self._session = secrets.randbits(60)
        self._newest = self._announced = NONE  # of what has come, and of what has not
        self._asked = False
        self._link = ClientLink(dialling, endpoint, self._hello, schema.nbytes + WORDS, 64, self.counters)
        self._link.open()

    def _hello(self) -> Hello:
        return Hello("parameters", 0, 0, self._session, 0, [], [self._schema_words])

    def read(self, timeout: float = 0.0) -> News | None:
        """A version that has been here for long is not the newest: who has time waits for the one announced since."""
        news = self._listen()
        if timeout <= 0.0:
            self._link.renew()
        elif news is None or self._announced > self._newest:
            news = self._wait(time.monotonic() + timeout) or news
        self.counters.received += news is not None
        return news

    def _wait(self, end: float) -> News | None:
        while (left := end - time.monotonic()) > 0:
            self._link.renew()
            self._link.wait(min(left, 1.0))
            if (news := self._listen()) is not None:
                return news
        return None

    def _listen(self) -> News | None:
        """What has come, if it is new; then ask for what comes next."""
        found = None
        while (heard := self._link.receive()) is not None:
            message, block = heard
            if isinstance(message, Values) and len(block) == self._schema.nbytes:
                self._asked = False
                if message.version > self._newest:
                    self._newest = message.version
                    found = message.version, block
            elif isinstance(message, Announce):
                self._announced = message.version
            elif isinstance(message, Welcome):
                self._asked = False
            else:
                self._link.malformed(f"{type(message).__name__} of {len(block)} bytes in a parameter stream")
        if not self._asked:
            self._asked = self._link.send(words(Fetch(self._newest)))
        return found and (found[0], self._schema.views(found[1]))

    def restart(self) -> None:
        """Read the newest version, also if it was read before."""
        self._newest, self._announced, self._asked = NONE, NONE, False

    def rebind(self, endpoint: str) -> None:
        self._announced = NONE
        self._asked = True  # not now: the answer to Hello is the sign for it
        self._link.rebind(endpoint)

    def close(self) -> None:
        self._link.close()
