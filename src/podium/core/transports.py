"""Every transport, registered once: its name, what it can do, and the class that makes its streams.

TRANSPORTS["tcp"].most_rows
between_processes()                     # "shm" on Linux, "tcp" elsewhere
"""

import sys
from dataclasses import dataclass
from typing import Literal

TransportName = Literal["memory", "shm", "tcp", "nearest"]


@dataclass(frozen=True)
class TransportKind:
    """One way to move bytes. `entry` is the Python path of its `podium.protocol.streams.Transport`."""

    name: TransportName
    entry: str
    reach: Literal["process", "host", "network"]
    """How far apart its two ends may be."""
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform` that it needs; empty: any."""
    most_rows: int = sys.maxsize
    """Rows of one inference request."""

    @property
    def available(self) -> bool:
        """Whether this platform has it."""
        return not self.platforms or sys.platform in self.platforms


MEMORY = TransportKind("memory", "podium.protocol.memory.transport:MemoryTransport", "process")
SHM = TransportKind("shm", "podium.protocol.shm.transport:ShmTransport", "host", platforms=("linux",))
TCP = TransportKind("tcp", "podium.protocol.tcp.transport:TcpTransport", "network", most_rows=4096)
NEAREST = TransportKind(
    "nearest", "podium.protocol.nearest.transport:NearestTransport", "network", platforms=("linux",), most_rows=4096
)
TRANSPORTS = {kind.name: kind for kind in (MEMORY, SHM, TCP, NEAREST)}


def between_processes() -> TransportName:
    """The nearest transport of this platform that leaves a process."""
    return next(kind.name for kind in TRANSPORTS.values() if kind.reach != "process" and kind.available)


def between_hosts() -> TransportName:
    """The transport of a cluster: the nearest way for each stream, where this platform has several."""
    return NEAREST.name if NEAREST.available else TCP.name


def others(kind: TransportKind) -> str:
    """The transports that reach further than `kind`, or than its platform: `shm or tcp`."""
    names = [name for name in TRANSPORTS if name != NEAREST.name]
    return " or ".join(names[names.index(kind.name) + 1 :])
