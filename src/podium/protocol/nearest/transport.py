"""Makes ends that use shared memory where both are on one host, and TCP elsewhere.

An end that others connect to is bound twice, and its endpoint names both: `HOST shm:/dev/shm/... tcp://10.0.0.7:4711`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Self

from podium.core.errors import StreamError
from podium.protocol.nearest.bound import NearestPublisher, NearestReceiver, NearestServer
from podium.protocol.nearest.connected import NearestClient, NearestReader, NearestSender, Route
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.transport import ShmTransport
from podium.protocol.streams import Transport, TransportPlace
from podium.protocol.tcp.transport import TcpTransport


class NearestTransport(Transport):
    """Chooses for each stream by where its two ends are. It closes the two transports that it is given.

    transport = NearestTransport("node-7", ShmTransport(directory), TcpTransport(keys, host="10.0.0.7"))
    """

    @classmethod
    def at(cls, place: TransportPlace) -> Self:
        """Both ways of a worker."""
        return cls(place.host, ShmTransport.at(place), TcpTransport.at(place))

    def __init__(self, host: str, shm: ShmTransport, tcp: TcpTransport) -> None:
        self._host, self._shm, self._tcp = host, shm, tcp

    def sample_receiver(self, schema: Schema) -> NearestReceiver:
        near, far = self._shm.sample_receiver(schema), self._tcp.sample_receiver(schema)
        return NearestReceiver(self._join(near.endpoint, far.endpoint), near, far)

    def parameter_publisher(self, policy: str, schema: Schema) -> NearestPublisher:
        near, far = self._shm.parameter_publisher(policy, schema), self._tcp.parameter_publisher(policy, schema)
        return NearestPublisher(self._join(near.endpoint, far.endpoint), near, far)

    def inference_server(self, request: Schema, reply: Schema) -> NearestServer:
        near, far = self._shm.inference_server(request, reply), self._tcp.inference_server(request, reply)
        return NearestServer(self._join(near.endpoint, far.endpoint), near, far)

    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> NearestSender:
        def connect(way: Transport, endpoint: str):
            return way.sample_sender(endpoint, schema, sender, credits)

        return NearestSender(partial(self._route, connect), endpoint)

    def parameter_reader(self, endpoint: str, schema: Schema) -> NearestReader:
        def connect(way: Transport, endpoint: str):
            return way.parameter_reader(endpoint, schema)

        return NearestReader(partial(self._route, connect), endpoint)

    def inference_client(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> NearestClient:
        def connect(way: Transport, endpoint: str):
            return way.inference_client(endpoint, request, reply, client, rows, limit)

        return NearestClient(partial(self._route, connect), endpoint)

    def close(self) -> None:
        self._tcp.close()
        self._shm.close()

    def _join(self, near: str, far: str) -> str:
        return f"{self._host} {near} {far}"

    def _route(self, connect, endpoint: str) -> Route:
        """Which way leads to an endpoint."""
        try:
            host, near, far = endpoint.split(" ")
        except ValueError:
            raise StreamError(f"endpoint {endpoint!r} is not one of several hosts (HOST shm:... tcp://...)") from None
        way, there = (self._shm, near) if host == self._host else (self._tcp, far)
        return Route(type(way), there, partial(connect, way, there))
