"""Makes the ends of streams between hosts, and ends them together."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeVar

import zmq

from podium.protocol.keys import RunKeys, authenticated
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Transport
from podium.protocol.tcp.inference import TcpInferenceClient, TcpInferenceServer
from podium.protocol.tcp.link import Dialling
from podium.protocol.tcp.parameters import TcpParameterPublisher, TcpParameterReader
from podium.protocol.tcp.samples import TcpSampleReceiver, TcpSampleSender

End = TypeVar(
    "End",
    TcpSampleReceiver,
    TcpSampleSender,
    TcpParameterPublisher,
    TcpParameterReader,
    TcpInferenceServer,
    TcpInferenceClient,
)


class TcpTransport(Transport):
    """Streams over TCP, authenticated and encrypted with the keys of one run.

    learner = TcpTransport(keys, host="10.0.0.7")             # listens there, at ports that are free
    actor = TcpTransport(keys.for_clients())
    receiver = learner.sample_receiver(schema)
    sender = actor.sample_sender(receiver.endpoint, schema, SenderId(0, 0), credits=4)
    """

    name = "tcp"

    def __init__(self, keys: RunKeys, host: str = "127.0.0.1", connect_limit: float = 10.0) -> None:
        self._keys, self._host = keys, host
        self._context = zmq.Context()
        self._dialling = Dialling(self._context, keys.for_clients(), connect_limit)
        self._guard = ExitStack()
        self._guarded = False
        self._ends: weakref.WeakSet = weakref.WeakSet()

    def _serving(self) -> tuple[zmq.Context, RunKeys, str]:
        """What a server's end needs; the guard that asks clients for their key starts with the first of them."""
        if not self._guarded:
            self._guard.enter_context(authenticated(self._context, self._keys))
            self._guarded = True
        return self._context, self._keys, self._host

    def _kept(self, end: End) -> End:
        self._ends.add(end)
        return end

    def sample_receiver(self, schema: Schema) -> TcpSampleReceiver:
        return self._kept(TcpSampleReceiver(*self._serving(), schema))

    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> TcpSampleSender:
        return self._kept(TcpSampleSender(self._dialling, endpoint, schema, sender, credits))

    def parameter_publisher(self, policy: str, schema: Schema) -> TcpParameterPublisher:
        return self._kept(TcpParameterPublisher(*self._serving(), policy, schema))

    def parameter_reader(self, endpoint: str, schema: Schema) -> TcpParameterReader:
        return self._kept(TcpParameterReader(self._dialling, endpoint, schema))

    def inference_server(self, request: Schema, reply: Schema) -> TcpInferenceServer:
        return self._kept(TcpInferenceServer(*self._serving(), request, reply))

    def inference_client(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> TcpInferenceClient:
        return self._kept(TcpInferenceClient(self._dialling, endpoint, request, reply, client, rows, limit))

    def close(self) -> None:
        """Ends that are still open are closed, too. Waits for what they committed, at most a second."""
        for end in list(self._ends):
            end.close()
        self._guard.close()
        self._context.destroy(linger=0)
