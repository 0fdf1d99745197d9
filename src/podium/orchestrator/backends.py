"""The back ends put together: a directory, a spawner and a supervisor for one program.

with local(program, logs=run / "logs", status=run / "status.json") as supervisor:
    supervisor.start()
    while supervisor.outcome is None:
        supervisor.tick()
        time.sleep(0.05)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podium.orchestrator.processes import ProcessSpawner
from podium.orchestrator.program import Program
from podium.orchestrator.supervisor import LIMITS, Limits, Supervisor
from podium.orchestrator.threads import ThreadSpawner
from podium.protocol.directory import LEASE_S, Directory
from podium.protocol.directory_server import DirectoryServer
from podium.protocol.run_keys import RunKeys


@contextmanager
def threads(program: Program, *, lease_s: float = LEASE_S, **options: Any) -> Iterator[Supervisor]:
    """Workers are threads of this process; `options` are the supervisor's."""
    directory = Directory(lease_s)
    with Supervisor(program, ThreadSpawner(program, directory), directory, **options) as supervisor:
        yield supervisor


@contextmanager
def local(
    program: Program,
    logs: Path,
    *,
    lease_s: float = LEASE_S,
    limits: Limits = LIMITS,
    host: str | None = None,
    **options: Any,
) -> Iterator[Supervisor]:
    """Workers are processes of this machine; `options` are the supervisor's. Leaves none behind."""
    directory, keys = Directory(lease_s), RunKeys.generate()
    with DirectoryServer(directory, keys) as server:
        spawner = ProcessSpawner(program, server.endpoint, keys, logs, host=host, leave_s=limits.leave_s)
        with Supervisor(program, spawner, directory, limits=limits, **options) as supervisor:
            yield supervisor
