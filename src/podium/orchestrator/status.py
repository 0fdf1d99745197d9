"""How a run's workers are, in a file that others may read at any time: `podium ps`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from podium.core.errors import PodiumError
from podium.core.files import write_whole

PERIOD_S = 1.0  # between two writes, unless a worker's state has changed

WorkerState = Literal["pending", "starting", "running", "silent", "restarting", "ended"]


@dataclass(frozen=True)
class WorkerStatus:
    """One worker. `since` is when its state began, in seconds since the epoch; a metric that is not finite is None."""

    role: str
    index: int
    incarnation: int
    pid: int | None
    host: str
    state: WorkerState
    since: float
    restarts: int
    progress: int
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class RunStatus:
    """All workers of a run, and the process that watches over them: if that is gone, the rest is history."""

    launcher: int
    host: str
    state: Literal["running", "stopping", "done", "stopped", "failed"]
    message: str
    workers: list[WorkerStatus]
    written: float = 0.0


def write_status(path: Path, status: RunStatus) -> None:
    """Replace the file at once."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(status), indent=1).decode())


def read_status(path: Path) -> RunStatus | None:
    """What was last written; None if nothing was."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunStatus)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise PodiumError(f"{str(path)!r} is not the status of a run: {error}") from None


class StatusFile:
    """Writes when a state changes, and once a second otherwise.

    file = StatusFile(run / "status.json")
    file.offer(status)        # as often as you like
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._shape: object = None
        self._written = 0.0

    def offer(self, status: RunStatus) -> None:
        """Write it, if it is time to."""
        now = self._clock()
        shape = status.state, [(worker.state, worker.incarnation, worker.pid) for worker in status.workers]
        if shape != self._shape or now - self._written >= PERIOD_S:
            self._shape, self._written = shape, now
            write_status(self._path, replace(status, written=now))
