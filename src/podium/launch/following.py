"""Where the peers of a worker are: streams go after those that have come back elsewhere."""

from collections.abc import Sequence

from podium.orchestrator.worker import WorkerContext
from podium.protocol.directory import Entry
from podium.protocol.streams import InferenceClient, ParameterReader, SampleSender

End = SampleSender | ParameterReader | InferenceClient
NAMES: dict[type, str] = {SampleSender: "samples", ParameterReader: "parameters", InferenceClient: "inference"}


class Follow:
    """Called by a worker that waits: where a peer has come back, perhaps elsewhere, the streams to it go there."""

    def __init__(self, context: WorkerContext, ends: Sequence[tuple[Entry, End]]) -> None:
        self._member = context.member
        self._ends = list(ends)

    def __call__(self) -> None:
        for i, (peer, end) in enumerate(self._ends):
            for entry in self._member.entries(peer.role):
                if entry.ready and entry.index == peer.index and entry.incarnation > peer.incarnation:
                    self._ends[i] = entry, end
                    end.rebind(entry.endpoints[_stream_of(end)])


def _stream_of(end: End) -> str:
    return next(name for kind, name in NAMES.items() if isinstance(end, kind))
