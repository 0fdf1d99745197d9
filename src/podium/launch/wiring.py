"""A worker's ends of its streams, made from the edges of the program: the same in threads and in processes.

wiring = Wiring(program, "actor", SenderId(3, 0), transport, find, stack)
sender, reader = wiring.send_samples(), wiring.read_parameters()      # what the program has no edge for is refused
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Literal, TypeVar

from podium.orchestrator.program import Edge, Program, Stream, share
from podium.protocol.directory import Registration
from podium.protocol.schema import Schema, SenderId
from podium.protocol.streams import (
    InferenceClient,
    InferenceServer,
    ParameterPublisher,
    ParameterReader,
    SampleReceiver,
    SampleSender,
    Transport,
)

Find = Callable[[str, int], list[Registration]]
"""Waits until so many workers of a role have announced themselves: `find("learner", 1)`."""
BoundEnd = TypeVar("BoundEnd", SampleReceiver, ParameterPublisher, InferenceServer)
ConnectedEnd = TypeVar("ConnectedEnd", SampleSender, ParameterReader, InferenceClient)


class Wiring:
    """Opens the ends that the edges give a worker; `stack` closes them.

    `endpoints` are those of the ends that it has bound, to be announced; `connections` says which worker each of the
    other ends leads to.
    """

    def __init__(
        self, program: Program, role: str, sender: SenderId, transport: Transport, find: Find, stack: ExitStack
    ) -> None:
        self.endpoints: dict[str, str] = {}
        self.connections: list[tuple[Registration, SampleSender | ParameterReader | InferenceClient]] = []
        self._program, self._role, self._sender = program, role, sender
        self._transport, self._find, self._stack = transport, find, stack

    def receive_samples(self) -> SampleReceiver:
        """The end that takes fragments in."""
        edge = self._edge("samples", "receivers")
        return self._bound("samples", self._transport.sample_receiver(_known(edge.schema.receiver)))

    def publish_parameters(self) -> ParameterPublisher:
        """The end that new versions of the policy leave by."""
        edge = self._edge("parameters", "senders")
        publisher = self._transport.parameter_publisher(edge.policy, _known(edge.schema.sender))
        return self._bound("parameters", publisher)

    def serve_requests(self) -> InferenceServer:
        """The end that answers requests."""
        edge = self._edge("inference", "receivers")
        schemas = _known(edge.schema.receiver), _known(edge.reply.receiver)
        return self._bound("inference", self._transport.inference_server(*schemas))

    def send_samples(self) -> SampleSender:
        """The end that fragments leave by, with the credits of this worker's slots."""
        edge = self._edge("samples", "senders")
        found = self._peers(edge.receivers)
        peer = found[self._sender.worker % len(found)] if edge.sharded else found[0]
        schema, credits = _known(edge.schema.sender), edge.credits * self._slots(edge)
        sender = self._transport.sample_sender(peer.endpoints["samples"], schema, self._sender, credits)
        return self._connected(peer, sender)

    def read_parameters(self) -> ParameterReader:
        """The end that new versions of the policy come in by."""
        edge = self._edge("parameters", "receivers")
        (peer,) = self._peers(edge.senders)
        reader = self._transport.parameter_reader(peer.endpoints["parameters"], _known(edge.schema.receiver))
        return self._connected(peer, reader)

    def request(self) -> list[InferenceClient]:
        """An end towards each worker that answers requests; none where the program has no such edge."""
        if not self._has("inference", "senders"):
            return []
        edge, clients = self._edge("inference", "senders"), []
        schemas, rows = (_known(edge.schema.sender), _known(edge.reply.sender)), [edge.rows] * self._slots(edge)
        for peer in self._peers(edge.receivers):
            endpoint = peer.endpoints["inference"]
            client = self._transport.inference_client(endpoint, *schemas, self._sender, rows, edge.limit_s)
            clients.append(self._connected(peer, client))
        return clients

    def _edge(self, stream: Stream, side: Literal["senders", "receivers"]) -> Edge:
        found = self._edges(stream, side)
        if len(found) != 1:
            raise ValueError(
                f"the program has {len(found)} edges with {self._role} among the {side} of {stream}, not 1"
            )
        return found[0]

    def _slots(self, edge: Edge) -> int:
        return len(share(edge.slots, self._program.group(self._role).count, self._sender.worker))

    def _has(self, stream: Stream, side: Literal["senders", "receivers"]) -> bool:
        return bool(self._edges(stream, side))

    def _edges(self, stream: Stream, side: Literal["senders", "receivers"]) -> list[Edge]:
        return [edge for edge in self._program.edges if edge.stream == stream and self._role in getattr(edge, side)]

    def _peers(self, roles: tuple[str, ...]) -> list[Registration]:
        return [peer for role in roles for peer in self._find(role, self._program.group(role).count)]

    def _bound(self, stream: Stream, end: BoundEnd) -> BoundEnd:
        self.endpoints[stream] = end.endpoint
        return self._stack.enter_context(closing(end))

    def _connected(self, peer: Registration, end: ConnectedEnd) -> ConnectedEnd:
        self.connections.append((peer, end))
        return self._stack.enter_context(closing(end))


def _known(schema: Schema | None) -> Schema:
    assert schema is not None, "Podium's own programs know their schemas when they are built"
    return schema
