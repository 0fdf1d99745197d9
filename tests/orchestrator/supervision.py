"""Driving a supervisor in tests: tick until something is true, and see that no process is left."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from podium.orchestrator.status import WorkerStatus
from podium.orchestrator.supervisor import Limits, Outcome, Supervisor

LIMIT_S = 60.0  # of any wait: far more than it takes, also on a loaded machine
QUICK = Limits(leave_s=1.0, checkpoint_s=30.0, backoff_s=0.01, backoff_max_s=0.05)


def tick_until(supervisor: Supervisor, true: Callable[[], object]) -> None:
    """Tick as a launcher does; fails if it takes too long, or if the run ends first."""
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, f"did not happen: {supervisor.status()}"
        assert supervisor.outcome is None, supervisor.outcome
        supervisor.tick()
        time.sleep(0.01)


def run_to_end(supervisor: Supervisor) -> Outcome:
    """Tick until the run is over."""
    end = time.monotonic() + LIMIT_S
    while supervisor.outcome is None:
        assert time.monotonic() < end, f"did not end: {supervisor.status()}"
        supervisor.tick()
        time.sleep(0.01)
    return supervisor.outcome


def worker(supervisor: Supervisor, name: str) -> WorkerStatus:
    """The status of `actor-1`."""
    role, _, index = name.partition("-")
    (found,) = [one for one in supervisor.status().workers if one.role == role and one.index == int(index)]
    return found


def lives(pid: int) -> bool:
    """Whether there is a process `pid`, other than one that is dead and not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def no_child_is_left() -> bool:
    """Whether this process has no child at all that is a worker."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return not any(b"podium.orchestrator.process" in _command(pid) for pid in children)


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
