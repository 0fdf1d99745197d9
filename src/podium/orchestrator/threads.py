"""Back end `threads`: every worker is a thread of this process. For tests: nothing can be killed here."""

import json
import os
import threading

from podium.core.imports import load_path
from podium.orchestrator.program import Group, Program
from podium.orchestrator.spawner import Handle, Spawner
from podium.orchestrator.worker import Ending, WorkerContext, supervised
from podium.protocol.directory import Directory
from podium.protocol.membership import attach, host_identity
from podium.protocol.run_keys import RunKeys


class ThreadHandle(Handle):
    """A worker's thread. It ends when it looks at `stop`, or not at all."""

    def __init__(self, group: Group, index: int, incarnation: int, spawner: "ThreadSpawner") -> None:
        self.name = f"{group.role}-{index}"
        self.pid = os.getpid()
        self._stop = threading.Event()
        self._ending: Ending | None = None
        self._thread = threading.Thread(
            target=self._run, args=(group, index, incarnation, spawner), name=self.name, daemon=True
        )
        self._thread.start()

    def _run(self, group: Group, index: int, incarnation: int, spawner: "ThreadSpawner") -> None:
        def work() -> None:
            entry = load_path(group.entry, f"entry of {group.role}")
            payload = json.loads(json.dumps(dict(group.payload)))  # what it would be in a process
            identity, host = (group.role, index, incarnation), spawner.host
            roles = spawner.program.peers(group.role)
            with attach(spawner.directory, *identity, host=host, roles=roles, stop=self._stop) as membership:
                entry(WorkerContext(*identity, payload, membership, self._stop, host, spawner.keys))

        self._ending = supervised(work, self._stop)

    def poll(self) -> int | None:
        return self._ending.code if self._ending and not self._thread.is_alive() else None

    def terminate(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self._stop.set()

    def wait(self, timeout: float) -> int | None:
        self._thread.join(timeout)
        return self.poll()

    def failure(self) -> str | None:
        return self._ending.message if self._ending else None


class ThreadSpawner(Spawner):
    """Starts threads whose memberships talk to the directory without sockets."""

    def __init__(
        self, program: Program, directory: Directory, keys: RunKeys | None = None, host: str | None = None
    ) -> None:
        self.program = program
        self.directory = directory
        self.keys = keys
        self.host = host or host_identity()

    def start(self, group: Group, index: int, incarnation: int) -> ThreadHandle:
        return ThreadHandle(group, index, incarnation, self)
