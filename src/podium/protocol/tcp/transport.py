"""Makes the ends of streams between hosts, and ends them together."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

import zmq

from podium.protocol.run_keys import RunKeys, authenticated
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.futex import AVAILABLE
from podium.protocol.streams import Transport, TransportPlace
from podium.protocol.tcp.client_link import Dialling
from podium.protocol.tcp.host_copy import SharedParameterReader
from podium.protocol.tcp.inference_client import TcpInferenceClient
from podium.protocol.tcp.inference_server import TcpInferenceServer
from podium.protocol.tcp.parameters import TcpParameterPublisher, TcpParameterReader
from podium.protocol.tcp.sample_receiver import TcpSampleReceiver
from podium.protocol.tcp.sample_sender import TcpSampleSender
from podium.protocol.tcp.sockets import Listening

End = TypeVar(
    "End",
    TcpSampleReceiver,
    TcpSampleSender,
    TcpParameterPublisher,
    TcpParameterReader,
    SharedParameterReader,
    TcpInferenceServer,
    TcpInferenceClient,
)


class TcpTransport(Transport):
    """Streams over TCP, authenticated and encrypted with the keys of one run.

    learner = TcpTransport(keys, host="10.0.0.7")             # listens there, at ports that are free
    actor = TcpTransport(keys.for_clients())
    receiver = learner.sample_receiver(schema)
    sender = actor.sample_sender(receiver.endpoint, schema, SenderId(0, 0), credits=4)

    `share` is a directory of the run in this host's shared memory: parameters are fetched into it once for all readers.
    Where there is none, each fetches its own.
    """

    def __init__(
        self, keys: RunKeys, host: str = "127.0.0.1", connect_limit: float = 10.0, share: Path | None = None
    ) -> None:
        self._keys, self._host = keys, host
        self._share = share if share is not None and AVAILABLE and share.is_dir() else None
        self._context = zmq.Context()
        self._dialling = Dialling(self._context, keys.for_clients(), connect_limit)
        self._guard = ExitStack()
        self._guarded = False
        self._ends: weakref.WeakSet = weakref.WeakSet()

    @classmethod
    def at(cls, place: TransportPlace) -> Self:
        """At the worker's address, with the keys of its run."""
        assert place.keys is not None, "only threads have no keys, and they need none"
        return cls(place.keys, place.address, share=place.directory)

    def _listening(self) -> Listening:
        """What a server's end needs; the guard that asks clients for their key starts with the first of them."""
        if not self._guarded:
            self._guard.enter_context(authenticated(self._context, self._keys))
            self._guarded = True
        return Listening(self._context, self._keys, self._host)

    def _kept(self, end: End) -> End:
        self._ends.add(end)
        return end

    def sample_receiver(self, schema: Schema) -> TcpSampleReceiver:
        return self._kept(TcpSampleReceiver(self._listening(), schema))

    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> TcpSampleSender:
        return self._kept(TcpSampleSender(self._dialling, endpoint, schema, sender, credits))

    def parameter_publisher(self, policy: str, schema: Schema) -> TcpParameterPublisher:
        return self._kept(TcpParameterPublisher(self._listening(), policy, schema))

    def parameter_reader(self, endpoint: str, schema: Schema) -> TcpParameterReader | SharedParameterReader:
        reader = TcpParameterReader(self._dialling, endpoint, schema)
        if self._share is None:
            return self._kept(reader)
        return self._kept(SharedParameterReader(reader, self._share, endpoint, schema))

    def inference_server(self, request: Schema, reply: Schema) -> TcpInferenceServer:
        return self._kept(TcpInferenceServer(self._listening(), request, reply))

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
