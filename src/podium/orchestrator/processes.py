"""Back end `local`: every worker is a process of this machine, started afresh (never forked), with a log of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from podium.core.machine import count_cores
from podium.orchestrator.host import LOOPBACK, Host
from podium.orchestrator.process import HEADER, Description
from podium.orchestrator.program import Group, Program, Resources
from podium.orchestrator.spawner import Handle, Spawner
from podium.orchestrator.worker import FINISHED, STOPPED, TRACEBACK
from podium.protocol.membership import host_identity
from podium.protocol.run_keys import RunKeys
from podium.runs.tail import last_lines

TOLD_LINES, MOST_LINES = 30, 1000


class ProcessHandle(Handle):
    """A worker's process, the leader of a group of its own: what it has started dies with it."""

    def __init__(self, name: str, process: subprocess.Popen, log: Path, log_start: int) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log, self._log_start = log, log_start

    def poll(self) -> int | None:
        ended_before = self._process.returncode is not None
        code = self._process.poll()
        if code is not None and not ended_before:
            self._clear()
        return code

    def terminate(self) -> None:
        if self.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self.poll() is None:
            self._kill_group()

    def wait(self, timeout: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended_before = self._process.returncode is not None
            self._process.wait(timeout)
            if not ended_before:
                self._clear()
        return self.poll()

    def failure(self) -> str | None:
        """The last traceback or error in its log; else the last lines, which a crash in native code leaves."""
        if self.poll() in (None, FINISHED, STOPPED):
            return None
        lines = last_lines(self._log, MOST_LINES, self._log_start)
        lines = "\n".join(line for line in lines if not line.startswith(HEADER)).rstrip().splitlines()
        for number in range(len(lines) - 1, -1, -1):
            if lines[number].startswith("error: "):
                return lines[number]
            if lines[number] == TRACEBACK and (number == 0 or not _chained(lines[:number])):
                said = number > 0 and lines[number - 1].startswith("error: ")  # whose traceback it is
                return "\n".join(lines[number - said :])
        return "\n".join(lines[-TOLD_LINES:]) or None

    def _clear(self) -> None:
        """Close the lifeline, and end what the worker has left behind."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says it the second way
            os.killpg(self._process.pid, signal.SIGKILL)


class ProcessSpawner(Spawner):
    """Starts processes that join the directory at `endpoint`; their output goes to LOGS/ROLE-INDEX.log."""

    def __init__(
        self,
        program: Program,
        endpoint: str,
        keys: RunKeys,
        logs: Path,
        shm: Path,
        *,
        host: str | None = None,
        leave_s: float = 4.0,
    ) -> None:
        self.host = host or host_identity()
        self._endpoint, self._keys, self._logs, self._leave_s = endpoint, keys, logs, leave_s
        self._shm = shm
        self._program = program
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, group: Group, index: int, incarnation: int) -> ProcessHandle:
        host = Host(self.host, LOOPBACK, str(self._shm), max(1, count_cores() // group.count))
        options = {"directory": self._endpoint, "host": host, "leave_s": self._leave_s, "path": sys.path}
        description = describe_worker(self._program, group, index, incarnation, self._keys, **options)
        return start_process(description, group.resources, self._logs / f"{group.role}-{index}.log")


def describe_worker(
    program: Program, group: Group, index: int, incarnation: int, keys: RunKeys, **options: Any
) -> Description:
    """What the process of a worker is told. Only roles that others connect to get the run's server key."""
    return Description(
        entry=group.entry,
        role=group.role,
        index=index,
        incarnation=incarnation,
        payload=dict(group.payload),
        roles=program.peers(group.role),
        keys=keys if group.role in program.binders else keys.for_clients(),
        **options,
    )


def start_process(description: Description, resources: Resources, log: Path) -> ProcessHandle:
    """Start the process that is described; its output goes to the end of `log`."""
    line = msgspec.json.encode(description) + b"\n"
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "podium.orchestrator.process"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(resources, os.environ),
            start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only
        )
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # it is dead already, which `poll` will say
        process.stdin.write(line)
        process.stdin.flush()
    return ProcessHandle(f"{description.role}-{description.index}", process, log, start)


def environment(resources: Resources, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: what jax and its libraries read once, when they are imported."""
    env = {**inherited, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    if resources.platform == "cpu":
        env["JAX_PLATFORMS"] = "cpu"
    elif env.get("JAX_PLATFORMS") == "cpu":  # a launcher that keeps off the GPU says nothing of its workers
        del env["JAX_PLATFORMS"]
    if 0 < resources.gpus < 1:
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # it shares the GPU's memory
    if resources.threads is not None:
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            env[variable] = str(resources.threads)
        env["NPROC"] = str(resources.threads)  # the size of XLA's pool of threads on the CPU
        if resources.threads == 1:
            env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return env


def _chained(before: list[str]) -> bool:
    """Whether a traceback after these lines goes on from another one ("During handling of the above exception ...")."""
    said = [line for line in before if line][-1:]
    return bool(said) and said[0].endswith(("another exception occurred:", "direct cause of the following exception:"))
