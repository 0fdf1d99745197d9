"""Where the peers of a worker are: streams go after those that have come back elsewhere."""

from collections.abc import Callable, Sequence

from podium.protocol.directory import Registration
from podium.protocol.membership import Membership
from podium.protocol.streams import InferenceClient, ParameterReader, SampleSender

End = SampleSender | ParameterReader | InferenceClient
NAMES: dict[type, str] = {SampleSender: "samples", ParameterReader: "parameters", InferenceClient: "inference"}


class Reconnect:
    """Called by a worker that waits: where a peer has come back, perhaps elsewhere, the streams to it go there.

    `servers` is told when inference workers die or come back: the clients of those that are there now. If none is, it
    is not told, and requests wait for the first that comes back.
    """

    def __init__(
        self,
        membership: Membership,
        ends: Sequence[tuple[Registration, End]],
        servers: Callable[[list[InferenceClient]], None] | None = None,
    ) -> None:
        self._membership = membership
        self._ends = list(ends)
        self._servers = servers
        self._there = [end for _, end in ends if isinstance(end, InferenceClient)]

    def __call__(self) -> None:
        there = []
        for i, (peer, end) in enumerate(self._ends):
            found = [
                entry for entry in self._membership.entries(peer.role) if entry.ready and entry.index == peer.index
            ]
            for entry in found:
                if entry.incarnation > peer.incarnation:
                    self._ends[i] = entry, end
                    end.rebind(entry.endpoints[_stream_of(end)])
            if found and isinstance(end, InferenceClient):
                there.append(end)
        if self._servers and there and there != self._there:
            self._there = there
            self._servers(there)


def _stream_of(end: End) -> str:
    return next(name for kind, name in NAMES.items() if isinstance(end, kind))
