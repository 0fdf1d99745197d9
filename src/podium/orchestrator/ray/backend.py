"""The back end put together: a directory on this node's address, seats on all nodes, and the same supervisor."""

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from podium.orchestrator.program import Program
from podium.orchestrator.ray.cluster import connected
from podium.orchestrator.ray.spawner import RaySpawner, refuse_infeasible
from podium.orchestrator.supervisor import LIMITS, Limits, Supervisor
from podium.protocol.directory import LEASE_S, Directory
from podium.protocol.directory_server import DirectoryServer
from podium.protocol.run_keys import RunKeys

PATIENCE_S = 120.0
"""How long a worker goes on without a word from the directory: a cable may be cut. A seat that dies ends it at once."""


@contextmanager
def on_ray(
    program: Program,
    logs: Path,
    *,
    address: str,
    lease_s: float = LEASE_S,
    limits: Limits = LIMITS,
    **options: Any,
) -> Iterator[Supervisor]:
    """Workers are processes of a Ray cluster; `options` are the supervisor's. Leaves no seat and no place behind."""
    directory = Directory(lease_s, patience_s=max(PATIENCE_S, 2 * limits.silence_s))
    keys = RunKeys.generate()
    with connected(address) as host, DirectoryServer(directory, keys, host) as server:
        refuse_infeasible(program)
        spawner = RaySpawner(program, run_name(logs), server.endpoint, keys, logs, leave_s=limits.leave_s)
        with closing(spawner), Supervisor(program, spawner, directory, limits=limits, **options) as supervisor:
            yield supervisor


def run_name(logs: Path) -> str:
    """A name for the run's places and shared memory that no other run has."""
    return f"{logs.parent.name[:100]}-{os.getpid()}-{secrets.token_hex(3)}"
