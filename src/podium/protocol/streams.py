"""The three streams as interfaces: what a worker sees of any transport. `podium.protocol.testing` checks each promise.

 samples      actor    SampleSender       -> SampleReceiver   learner      bounded, once or counted, order kept
 parameters   learner  ParameterPublisher -> ParameterReader  everybody    the latest wins, never half of one
 inference    actor    InferenceClient    <-> InferenceServer inference    a reply belongs to its request

Every wait has a limit in seconds and returns None (or nothing) when it is over; the caller then looks whether it
should stop, or whether its peer has moved. One thread at a time uses an end; only of a SampleReceiver, any other thread
may ask for `senders` and `release` what was received while one receives.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from podium.protocol.schema import Schema, SenderId, Version

if TYPE_CHECKING:
    from podium.protocol.run_keys import RunKeys


class FragmentHeader(NamedTuple):
    """What is known of a fragment without looking into its arrays."""

    slot: int  # global number of the environments' slot that it is from
    sequence: int  # of this sender: 0, 1, 2, ...
    version: Version  # the oldest that chose one of its actions
    steps: int  # valid env steps
    produced: int  # valid env steps of this sender, over all its fragments up to this one


@dataclass
class Counters:
    """What a transport end met; nothing is dropped without being counted here."""

    received: int = 0  # records or messages taken
    refused: int = 0  # peers turned away: older incarnation, other schema
    malformed: int = 0  # frames or records that were not what the schema says
    sent: int = 0


@dataclass
class Buffer:
    """Arrays to write one fragment into: in place where the transport allows it."""

    index: int
    arrays: list[np.ndarray]


@dataclass
class Received:
    """A fragment at the receiver. The arrays may be the sender's own memory: they are valid until `release`.

    `release` gives the credit back, so it is called when the fragment has been trained on (or dropped), once, from any
    thread.
    """

    sender: SenderId
    header: FragmentHeader
    arrays: list[np.ndarray]
    release: Callable[[], None]


class SampleSender(ABC):
    """The actor's end of a sample stream. It owns `credits` buffers: with none free, it waits.

    buffer = sender.acquire(timeout=0.2)         # None: no credit yet
    ... write into buffer.arrays ...
    sender.commit(buffer, header)
    """

    counters: Counters

    @abstractmethod
    def acquire(self, timeout: float) -> Buffer | None:
        """A free buffer, or None when `timeout` seconds have passed without one. Several may be out at once.

        Raises RefusedError once the receiver has refused this sender.
        """

    @abstractmethod
    def commit(self, buffer: Buffer, header: FragmentHeader) -> None:
        """Send it. Buffers may be committed in another order than they were acquired; that of commits is kept."""

    @abstractmethod
    def rebind(self, endpoint: str) -> None:
        """The receiver has come back, perhaps elsewhere. What it had not released is lost, or still in its reach."""

    @abstractmethod
    def close(self) -> None:
        """Leave. What was committed can still be received. Twice is harmless."""


class SampleReceiver(ABC):
    """The learner's end: any number of senders, which come and go.

    while (received := receiver.receive(timeout=0.2)) is not None:
        copy(received.arrays); ...; received.release()
    """

    endpoint: str
    counters: Counters

    @abstractmethod
    def receive(self, timeout: float) -> Received | None:
        """The next fragment of whoever has one, fairly; None after `timeout` seconds without any."""

    @abstractmethod
    def senders(self) -> dict[SenderId, int]:
        """Who is connected, and how many committed fragments of theirs wait here (queue fill). From any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is harmless."""


class ParameterPublisher(ABC):
    """The learner's end of one policy's parameters."""

    endpoint: str
    counters: Counters

    @abstractmethod
    def publish(self, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Make this the newest version; copies, so that the arrays are the caller's again. Never waits for a reader."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is harmless."""


class ParameterReader(ABC):
    """Anybody's end of one policy's parameters.

    if (news := reader.read()) is not None:
        version, arrays = news
    """

    counters: Counters

    @abstractmethod
    def read(self, timeout: float = 0.0) -> tuple[Version, list[np.ndarray]] | None:
        """The newest version if it is newer than the last one read; else None, after `timeout` seconds.

        The arrays are the reader's own copy, whole, and stay as they are until the next version is read.
        With timeout 0 and nothing new it costs about a memory access.
        """

    @abstractmethod
    def rebind(self, endpoint: str) -> None:
        """The publisher has come back, perhaps elsewhere: go on there. Versions must still grow."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is harmless."""


class Reply(NamedTuple):
    """What became of a slot's request: the arrays, valid until its next `submit`; None if it failed in time."""

    slot: int
    version: Version
    arrays: list[np.ndarray] | None


class InferenceClient(ABC):
    """The actor's end towards one inference worker: for each of its slots at most one request is out.

    client.submit(slot, arrays)
    for reply in client.poll(timeout=0.001): ...
    """

    counters: Counters

    @abstractmethod
    def submit(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        """Send the slot's request, copied at once. An earlier one of the slot is forgotten, and its reply."""

    @abstractmethod
    def poll(self, timeout: float) -> list[Reply]:
        """Replies that have come, and requests older than the client's limit as failed; waits for the first one."""

    @abstractmethod
    def rebind(self, endpoint: str) -> None:
        """The server has come back, perhaps elsewhere. Requests that were out fail at the next poll."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is harmless."""


@dataclass
class RequestBatch:
    """Requests merged into arrays [padded rows, ...], of which `rows` are real; `parts` says whose is whose."""

    arrays: list[np.ndarray]
    rows: int
    parts: list[Any] = field(default_factory=list)


class InferenceServer(ABC):
    """The inference worker's end: takes what is pending from all clients.

    while (batch := server.gather(max_rows=256, wait=0.0005, timeout=0.2)) is not None:
        server.reply(batch, version, outputs)
    """

    endpoint: str
    counters: Counters

    @abstractmethod
    def gather(self, max_rows: int, wait: float, timeout: float) -> RequestBatch | None:
        """Merge pending requests: all there are up to `max_rows`, after waiting at most `wait` seconds for more.

        Requests are never split. Rows are padded to the next power of two. None after `timeout` seconds without any.
        """

    @abstractmethod
    def reply(self, batch: RequestBatch, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Rows [:batch.rows] of the arrays, each to whoever asked; a client that has gone is skipped."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is harmless."""


class TransportPlace(NamedTuple):
    """Where a worker's ends are: `directory` is its host's shared memory, endpoints are bound to `address`.

    `host` is equal for two workers exactly if they share memory.
    """

    worker: str
    host: str
    directory: Path
    address: str
    keys: "RunKeys | None"


class Transport(ABC):
    """Makes the ends of streams: one for each way to move bytes. A worker is given its transport.

    Receivers, publishers and servers have an `endpoint`, a string that the directory hands to the others.
    `podium.core.transports` has all of them by name.
    """

    @classmethod
    @abstractmethod
    def at(cls, place: TransportPlace) -> Self:
        """The transport of one worker."""

    @abstractmethod
    def sample_receiver(self, schema: Schema) -> SampleReceiver:
        """The learner's end."""

    @abstractmethod
    def sample_sender(self, endpoint: str, schema: Schema, sender: SenderId, credits: int) -> SampleSender:
        """An actor's end with so many buffers. Raises RefusedError if the receiver has another schema."""

    @abstractmethod
    def parameter_publisher(self, policy: str, schema: Schema) -> ParameterPublisher:
        """The learner's end of a policy."""

    @abstractmethod
    def parameter_reader(self, endpoint: str, schema: Schema) -> ParameterReader:
        """Anybody's end of a policy."""

    @abstractmethod
    def inference_server(self, request: Schema, reply: Schema) -> InferenceServer:
        """An inference worker's end. Schemas are of one row: fields have the shape of a row, without the batch axis."""

    @abstractmethod
    def inference_client(
        self, endpoint: str, request: Schema, reply: Schema, client: SenderId, rows: Sequence[int], limit: float
    ) -> InferenceClient:
        """An actor's end: slot i has `rows[i]` rows in each request. Without a reply for `limit` seconds it fails."""

    @abstractmethod
    def close(self) -> None:
        """Free what the transport itself holds (contexts, directories of its own). Twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
