"""A seat: the Ray actor that holds one worker's process on a node, incarnation after incarnation.

The process is the same as on one machine, a child of the seat: the seat's end of the lifeline is a pipe, so a seat that
dies takes its worker along. The seat decides nothing: it starts what it is told to, and says how it ended.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ray.util import get_node_ip_address

from podium.core.machine import count_cores
from podium.orchestrator.host import Host
from podium.orchestrator.process import Description
from podium.orchestrator.processes import ProcessHandle, start_process
from podium.orchestrator.program import Resources
from podium.protocol.membership import host_identity
from podium.protocol.shm.directories import OwnedDirectory, join_directory, sweep
from podium.runs.accounting import last_report

CALLS = 4
"""Of a seat at once: one waits for the worker's end, the others start, signal and ask."""
LOOK_S = 1.0
ACCOUNTING = "accounting"
"""Where workers of a node keep their accounts, in its shared memory."""


class Ended(NamedTuple):
    """How a worker's process ended, and the account that it left in its node's shared memory."""

    code: int
    failure: str | None
    account: bytes = b""


class Seat:
    """Calls come from the spawner. Secrets come with `start`: Ray keeps a constructor's arguments in its tables."""

    def __init__(self, run: str) -> None:
        sweep()
        self._shared: OwnedDirectory = join_directory(run)
        self._process: ProcessHandle | None = None

    def host(self, cpus: float) -> Host:
        """Where this is. A worker on a cluster uses the cpus that were set aside for it."""
        cores = min(count_cores(), max(1, int(cpus)))
        return Host(host_identity(), get_node_ip_address(), str(self._shared.path), cores)

    def start(self, description: Description, resources: Resources, logs: str) -> int:
        """Start an incarnation; returns its process id on this node."""
        log = Path(logs) / f"{description.role}-{description.index}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        own = [entry for entry in sys.path if entry]  # with the user's code, which Ray has brought here
        self._process = process = start_process(replace(description, path=own), resources, log)
        assert process.pid is not None
        return process.pid

    def ended(self) -> Ended:
        """How the present incarnation ended, once it has."""
        process = self._process
        assert process is not None, "start comes first"
        while (code := process.wait(LOOK_S)) is None:
            pass
        role, _, index = process.name.rpartition("-")
        return Ended(code, process.failure(), last_report(self._shared.path / ACCOUNTING, role, int(index)))

    def terminate(self) -> None:
        """Ask the worker to stop."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the worker's process and what it has started."""
        if self._process is not None:
            self._process.kill()

    def leave(self) -> None:
        """End the worker, and give the node's shared memory back."""
        self.kill()
        self._shared.remove()
