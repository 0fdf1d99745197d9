"""Where one end waits for any of many others, how they find it, and how it finds them."""

import re
import secrets
from pathlib import Path

import msgspec

from podium.core.errors import StreamError
from podium.protocol.schema import SenderId
from podium.protocol.shm.futex import FutexWakeup
from podium.protocol.shm.segment import LINE, attach_or_create


class RendezvousText(msgspec.Struct, frozen=True):
    """A rendezvous's file has nothing to say."""


class Rendezvous:
    """It survives both sides, and is made by whoever comes first.

    `joins` is a number that changes whenever somebody has come or left: then one looks into the directory.
    """

    def __init__(self, path: Path) -> None:
        segment = attach_or_create(path, RendezvousText(), 2 * LINE)
        segment.check_size(2 * LINE)
        self.wakeup = FutexWakeup(segment.memory, segment.start)
        self.joins = segment.words(LINE, 1)

    def announce(self) -> None:
        """Tell that somebody has come or left. No count: two that add one at the same time would add one together."""
        self.joins[0] = secrets.randbits(62)
        self.wakeup.wake()


def named(directory: Path, stem: str) -> list[SenderId]:
    """Whose files begin with a stem, as in STEM3-0: of worker 3, incarnation 0."""
    names = [re.fullmatch(r"(\d+)-(\d+)", path.name.removeprefix(stem)) for path in directory.glob(f"{stem}*")]
    return sorted(SenderId(int(name[1]), int(name[2])) for name in names if name)


def endpoint_of(path: Path) -> str:
    """How a path is told to the other side."""
    return f"shm:{path}"


def path_of(endpoint: str) -> Path:
    """The path in an endpoint."""
    kind, _, path = endpoint.partition(":")
    if kind != "shm":
        raise StreamError(f"endpoint {endpoint!r} is not one of shared memory (shm:...)")
    return Path(path)
