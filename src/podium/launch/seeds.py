"""The same experiment with several seeds: a process for each, as many at once as there are cores, in one view.

code = SeedRuns([["ppo", "CartPole-v1", "--seed", "0"], ...], at_once=2).run()
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from podium.core.config import Experiment
from podium.core.machine import count_cores

CHECK_S = 0.1
PROGRESS = re.compile(r" *\d+%  ")
PARENT_DIED = 1
"""Linux's PR_SET_PDEATHSIG: the signal that a process gets when its parent is gone."""


def seeds_at_once(experiment: Experiment, seeds: int) -> int:
    """How many runs the cores allow, one for each process that a run is said to have."""
    actors, processes = experiment.topology.actors or 1, experiment.env.processes
    return max(1, min(seeds, count_cores() // max(1, actors, processes)))


def free_name(root: Path, stem: str) -> str:
    """A name that no run begins with: `ppo-CartPole-v1-1`, then -2."""
    number = 1
    while any(root.glob(f"{stem}-{number}-seed*")):
        number += 1
    return f"{stem}-{number}"


class SeedRuns:
    """Runs of `podium train`, one for each list of arguments; seed i is that of the i-th.

    A signal goes on to all that run, and none is started after it: each writes its checkpoint. A run that fails does
    not end the others.
    """

    def __init__(self, commands: Sequence[Sequence[str]], at_once: int) -> None:
        self._commands, self._at_once = [list(command) for command in commands], at_once
        self._processes: dict[int, subprocess.Popen] = {}
        self._signals: list[int] = []
        self._passed: dict[int, int] = {}  # how many signals each seed has got
        self._view = SeedView()

    def run(self) -> int:
        """Until the last has ended. Returns the exit code of the first seed that has another than 0."""
        before = {signum: signal.signal(signum, self._hear) for signum in (signal.SIGINT, signal.SIGTERM)}
        readers = []
        try:
            for seed, command in enumerate(self._commands):
                self._wait_for(lambda: len(self._running()) < self._at_once)
                if self._signals:
                    break
                readers.append(self._start(seed, command))
            self._wait_for(lambda: not self._running())
            for reader in readers:
                reader.join(5.0)
        finally:
            self._view.close()
            for process in self._running():  # only where something else than a run failed
                process.kill()
            for signum, handler in before.items():
                signal.signal(signum, handler)
        codes = [process.returncode for _, process in sorted(self._processes.items())]
        codes = [128 - code if code < 0 else code for code in codes]  # ended by a signal, as a shell tells it
        return next((code for code in codes if code), 130 if self._signals else 0)

    def _start(self, seed: int, command: list[str]) -> threading.Thread:
        """In a session of its own: Ctrl-C reaches it once, from here."""
        process = self._processes[seed] = subprocess.Popen(
            [sys.executable, "-m", "podium", "train", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            preexec_fn=_leave_with_parent if sys.platform == "linux" else None,
        )
        reader = threading.Thread(target=self._read, args=(seed, process), name=f"seed-{seed}", daemon=True)
        reader.start()
        return reader

    def _read(self, seed: int, process: subprocess.Popen) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._view.show(seed, line.rstrip())

    def _running(self) -> list[subprocess.Popen]:
        return [process for process in self._processes.values() if process.poll() is None]

    def _wait_for(self, holds: Callable[[], bool]) -> None:
        """Also signals are passed on here: as many to each run as came."""
        while not holds():
            for seed, process in self._processes.items():
                for signum in self._signals[self._passed.get(seed, 0) :]:
                    process.send_signal(signum)
                self._passed[seed] = len(self._signals)
            for process in self._running()[:1]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CHECK_S)

    def _hear(self, signum: int, _: FrameType | None) -> None:
        self._signals.append(signum)


class SeedView:
    """What all runs say: a line for each seed on a terminal, redrawn in place; elsewhere lines with their seed.

    What several of them say in the same words is shown once.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._rows: dict[int, str] = {}
        self._said: set[str] = set()
        self._lock = threading.Lock()
        if self._live is not None:
            self._live.start()

    def show(self, seed: int, line: str) -> None:
        """A line that this seed's run has written."""
        with self._lock:
            if PROGRESS.match(line) and self._live is not None:
                self._rows[seed] = f"seed {seed} | {line}"
                self._live.update("\n".join(row for _, row in sorted(self._rows.items())))
            elif PROGRESS.match(line) or line not in self._said:
                self._said.add(line)
                print(f"seed {seed} | {line}", file=sys.stderr, flush=True)  # rich puts it above its rows

    def close(self) -> None:
        """Leave the last rows where they are."""
        if self._live is not None:
            self._live.stop()


def _leave_with_parent() -> None:
    """In a run's process: end with a checkpoint when the parent is gone, whatever it died of."""
    ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGTERM)
