"""The back ends put together: a directory, a spawner and a supervisor for one program.

with local(program, logs=run / "logs", status=run / "status.json") as supervisor:
    supervisor.start()
    while supervisor.outcome is None:
        supervisor.tick()
        time.sleep(0.05)
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from podium.core.errors import ConfigError
from podium.core.extras import install_line
from podium.orchestrator.host import LOOPBACK
from podium.orchestrator.processes import ProcessSpawner
from podium.orchestrator.program import Program
from podium.orchestrator.supervisor import LIMITS, Limits, Supervisor
from podium.protocol.directory import LEASE_S, Directory
from podium.protocol.directory_server import DirectoryServer
from podium.protocol.run_keys import RunKeys
from podium.protocol.shm.directories import shared_directory


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
    with DirectoryServer(directory, keys, LOOPBACK) as server, shared_directory(logs.parent.name) as shm:
        spawner = ProcessSpawner(program, server.endpoint, keys, logs, shm, host=host, leave_s=limits.leave_s)
        with Supervisor(program, spawner, directory, limits=limits, **options) as supervisor:
            yield supervisor


def choose_back_end(on: str) -> Callable[..., AbstractContextManager[Supervisor]]:
    """Where a program can run, by name: `local`, `ray` for a cluster of this machine, or a Ray cluster's HOST:PORT.

    Raises ConfigError, before anything starts, for what cannot be used from here.
    """
    if on == "local":
        return local
    try:
        from podium.orchestrator.ray.backend import on_ray
        from podium.orchestrator.ray.cluster import require_token
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError(f"--on {on}: Ray is not installed; {install_line('cluster')}") from None
    require_token(on)
    return partial(on_ray, address=on)
