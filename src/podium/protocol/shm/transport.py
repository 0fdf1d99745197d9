"""The transport between the processes of one host."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from podium.core.errors import StreamError
from podium.protocol.schema import Schema, SenderId
from podium.protocol.shm.directories import OwnedDirectory
from podium.protocol.shm.futex import AVAILABLE
from podium.protocol.shm.inference_client import ShmInferenceClient
from podium.protocol.shm.inference_server import ShmInferenceServer
from podium.protocol.shm.parameters import ShmParameterPublisher, ShmParameterReader
from podium.protocol.shm.rendezvous import path_of
from podium.protocol.shm.sample_receiver import ShmSampleReceiver
from podium.protocol.shm.sample_sender import ShmSampleSender
from podium.protocol.streams import Transport, TransportPlace


class ShmTransport(Transport):
    """Streams in a directory of shared memory, which every process of the run is told.

    owned = create_directory("run-17")
    with ShmTransport(owned) as transport:            # the owner: its `close` removes the directory
        receiver = transport.sample_receiver(schema)
    ShmTransport(path).sample_sender(receiver.endpoint, schema, SenderId(0, 0), credits=4)     # another process

    A directory has one sample receiver, and any number of policies and inference servers. An end is used where its
    endpoint says, also if that is another directory than the transport's own.
    """

    def __init__(self, directory: Path | OwnedDirectory) -> None:
        if not AVAILABLE:
            raise StreamError("shared memory needs Linux's futex on x86-64 or aarch64: use transport tcp or memory")
        self._owned = directory if isinstance(directory, OwnedDirectory) else None
        self.directory = directory.path if isinstance(directory, OwnedDirectory) else Path(directory)
        if not self.directory.is_dir():
            raise StreamError(f"{self.directory} is not there: its owner has gone")

    @classmethod
    def at(cls, place: TransportPlace) -> Self:
        """In a directory of the worker's own, because a directory has one receiver of samples."""
        own = place.directory / place.worker
        own.mkdir(mode=0o700, exist_ok=True)
        return cls(own)

    def sample_receiver(self, schema: Schema) -> ShmSampleReceiver:
        """The directory's one receiver; after another has died or left, it goes on where that one was."""
        return ShmSampleReceiver(self.directory, schema)

    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> ShmSampleSender:
        """A ring beside the receiver."""
        return ShmSampleSender(path_of(endpoint), schema, sender, credits)

    def parameter_publisher(self, policy: str, schema: Schema) -> ShmParameterPublisher:
        """One copy of the policy for this host."""
        return ShmParameterPublisher(self.directory, policy, schema)

    def parameter_reader(self, endpoint: str, schema: Schema) -> ShmParameterReader:
        """A reader of that copy."""
        return ShmParameterReader(endpoint, schema)

    def inference_server(self, request: Schema, reply: Schema) -> ShmInferenceServer:
        """A server of this directory's clients."""
        return ShmInferenceServer(self.directory, request, reply)

    def inference_client(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> ShmInferenceClient:
        """An area beside the server."""
        return ShmInferenceClient(endpoint, request, reply, client, rows, limit)

    def close(self) -> None:
        """The owner removes the directory; what is mapped stays usable until it is let go."""
        if self._owned is not None:
            self._owned.remove()
