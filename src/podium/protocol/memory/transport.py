"""The transport between the threads of one process."""

from collections.abc import Sequence
from itertools import count
from typing import Self

from podium.core.errors import StreamError
from podium.protocol.memory.inference import MemoryInferenceClient, MemoryInferenceServer
from podium.protocol.memory.parameters import MemoryParameterPublisher, MemoryParameterReader, PublishedParameters
from podium.protocol.memory.samples import Meeting, MemorySampleReceiver, MemorySampleSender
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import Transport, TransportPlace

SAMPLES = "memory:samples"


class MemoryTransport(Transport):
    """Streams between threads, which all use this one object.

    transport = MemoryTransport()
    receiver = transport.sample_receiver(schema)
    sender = transport.sample_sender(receiver.endpoint, schema, SenderId(0, 0), credits=4)

    It has one sample receiver, and any number of policies and inference servers.
    """

    def __init__(self) -> None:
        self._meeting = Meeting()
        self._policies: dict[str, PublishedParameters] = {}
        self._servers: dict[str, MemoryInferenceServer] = {}
        self._numbers = count()

    @classmethod
    def at(cls, place: TransportPlace) -> Self:
        """Refused: threads of one process share one object."""
        raise StreamError(f"{place.worker}: transport memory does not leave its process")

    def sample_receiver(self, schema: Schema) -> MemorySampleReceiver:
        """The transport's one receiver; after another has left, it goes on where that one was."""
        return MemorySampleReceiver(self._meeting, schema, SAMPLES)

    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> MemorySampleSender:
        """Buffers that the receiver reads in place."""
        if endpoint != SAMPLES:
            raise StreamError(f"endpoint {endpoint!r} is not that of a receiver in memory ({SAMPLES})")
        return MemorySampleSender(self._meeting, schema, sender, credits)

    def parameter_publisher(self, policy: str, schema: Schema) -> MemoryParameterPublisher:
        """One copy of each version, for all readers."""
        return MemoryParameterPublisher(self._policies, f"memory:policy-{next(self._numbers)}", policy, schema)

    def parameter_reader(self, endpoint: str, schema: Schema) -> MemoryParameterReader:
        """A reader of those copies."""
        return MemoryParameterReader(self._policies, endpoint, schema)

    def inference_server(self, request: Schema, reply: Schema) -> MemoryInferenceServer:
        """A server for threads."""
        return MemoryInferenceServer(self._servers, f"memory:server-{next(self._numbers)}", request, reply)

    def inference_client(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> MemoryInferenceClient:
        """Slots at a server."""
        return MemoryInferenceClient(self._servers, endpoint, request, reply, client, rows, limit)

    def close(self) -> None:
        """Nothing outlives the objects."""
