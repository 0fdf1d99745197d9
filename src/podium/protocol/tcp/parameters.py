"""Parameters over TCP: a new version is announced, and those who want it fetch the newest there is by then."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import zmq

from podium.protocol.keys import RunKeys
from podium.protocol.schema import Schema, Version, check_arrays
from podium.protocol.streams import Counters, ParameterPublisher, ParameterReader
from podium.protocol.tcp.link import Dialling, Link
from podium.protocol.tcp.peers import Peers
from podium.protocol.tcp.sockets import Router
from podium.protocol.tcp.wire import (
    HELLO,
    TO_SERVER,
    WORDS,
    Announce,
    Bye,
    Fetch,
    Hello,
    MalformedError,
    Values,
    Welcome,
    parse,
    schema_words,
    words,
)

DRAIN = 256  # messages taken at once, so that `publish` does not wait for the lock
_FETCH = words(Fetch())


@dataclass
class Subscription:
    """What a publisher knows of a reader: whether it was told that there is news. It is told once, until it fetches."""

    told: bool = False


class TcpParameterPublisher(ParameterPublisher):
    """The learner's end of one policy. A reader that does not read costs one small message, ever."""

    def __init__(self, context: zmq.Context, keys: RunKeys, host: str, policy: str, schema: Schema) -> None:
        self.counters = Counters()
        self.policy = policy
        self._schema = schema
        self._newest: tuple[Version, zmq.Frame] | None = None
        self._peers: Peers[Subscription] = Peers("parameters", (schema,), self.counters, lambda _: Subscription())
        # Two versions for a reader that asks and does not read are enough.
        self._router = Router(context, keys, host, HELLO, 4, self._attend)
        self.endpoint = self._router.endpoint
        self._peers.attach(self._router)
        self._router.start()

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
            self._announce()
            if self._router.pending():
                self._serve()

    def _announce(self) -> None:
        if self._newest is None:
            return
        text = None
        for peer in self._peers.all():
            if not peer.state.told:
                text = text or words(Announce(self._newest[0]))
                outcome = self._router.send(peer.route, text)
                peer.state.told = outcome == "sent"
                if outcome == "gone":
                    self._peers.leave(peer.route)

    def _attend(self) -> None:
        with self._router.lock:
            if not self._router.closed:
                self._serve()

    def _serve(self) -> None:
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
        if size or len(parts) > 1:
            raise MalformedError(f"{type(message).__name__} with arrays")
        if isinstance(message, Fetch):
            peer = self._peers.known(route)
            if peer is None or self._newest is None:
                return
            self.counters.received += 1
            if self._router.send(route, self._newest[1]) == "sent":
                peer.state.told = False
                self.counters.sent += 1
        elif isinstance(message, Hello):
            if (peer := self._peers.admit(route, message)) is not None:
                peer.state.told = False
                self._router.send(route, words(Welcome(version=self._newest[0] if self._newest else None)))
        elif isinstance(message, Bye):
            self._peers.leave(route)
        else:
            raise MalformedError(f"{type(message).__name__} in a parameter stream")

    def close(self) -> None:
        self._router.close()


class TcpParameterReader(ParameterReader):
    """Anybody's end of one policy: asks for a version only if there is a newer one and only when it is wanted."""

    def __init__(self, dialling: Dialling, endpoint: str, schema: Schema) -> None:
        self.counters = Counters()
        self._schema = schema
        self._schema_words = schema_words(schema)
        self._session = secrets.randbits(60)
        self._read: Version | None = None
        self._announced: Version | None = None
        self._asked = False
        self._link = Link(dialling, endpoint, self._hello, schema.nbytes + WORDS, 64, self.counters)
        self._announced = self._link.open().version

    def _hello(self) -> Hello:
        return Hello("parameters", 0, 0, self._session, 0, [], [self._schema_words])

    def read(self, timeout: float = 0.0) -> tuple[Version, list[np.ndarray]] | None:
        end = 0.0
        while True:
            if (news := self._listen()) is not None:
                self._read = news[0]
                self.counters.received += 1
                return news
            if self._newer(self._announced) and not self._asked:
                self._asked = self._link.send(_FETCH)
            self._link.renew()
            if timeout <= 0.0:
                return None
            end = end or time.monotonic() + timeout
            if (left := end - time.monotonic()) <= 0:
                return None
            self._link.wait(min(left, 1.0))

    def _newer(self, version: Version | None) -> bool:
        return version is not None and (self._read is None or version > self._read)

    def _listen(self) -> tuple[Version, list[np.ndarray]] | None:
        latest = None
        while (news := self._link.receive()) is not None:
            message, block = news
            if isinstance(message, Values) and len(block) == self._schema.nbytes:
                self._asked = False
                if self._newer(message.version):
                    latest = message.version, block
            elif isinstance(message, Announce):
                self._announced = message.version
            elif isinstance(message, Welcome):
                self._announced, self._asked = message.version, False
            else:
                self._link.malformed(f"{type(message).__name__} of {len(block)} bytes in a parameter stream")
        return latest and (latest[0], self._schema.views(latest[1]))

    def rebind(self, endpoint: str) -> None:
        self._announced, self._asked = None, False
        self._link.rebind(endpoint)

    def close(self) -> None:
        self._link.close()
