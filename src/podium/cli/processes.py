"""`podium ps` and `podium stop`: runs that go on in other terminals."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional

from podium.cli.arguments import Command, flag, read_whole
from podium.cli.tables import print_table
from podium.core.errors import ConfigError, PodiumError

if TYPE_CHECKING:
    from podium.orchestrator.status import WorkerStatus
    from podium.runs.directory import Holder, RunDirectory

LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Ps(Command):
    """List the runs that are running, with their workers."""

    EXAMPLES: ClassVar[str] = """\
  podium ps
  podium ps --root elsewhere/runs"""

    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """List."""
        from podium.runs.directory import list_runs, root_flag

        running = [(run, holder) for run in list_runs(self.root) if (holder := run.holder()) is not None]
        if not running:
            print(f"nothing is running in {self.root}; `podium runs{root_flag(self.root)}` lists what has ended")
            return 0
        print_table(["run", "pid", "mode", "steps", "steps/s", "return", "since"], [_run_row(*one) for one in running])
        for run, holder in running:
            _show_workers(run, holder)
        return 0


@dataclass(frozen=True)
class Stop(Command):
    """End a run that is running: it writes a checkpoint first, and `podium resume` goes on from it."""

    EXAMPLES: ClassVar[str] = """\
  podium stop NAME
  podium stop NAME --timeout 300                        a run whose checkpoint takes minutes"""

    name: Positional[Annotated[str, flag("RUN")]] = ""
    """Name or path of a run, or `latest`."""
    timeout: Annotated[str, flag("SECONDS", "(default: 90)")] = "90"
    """How long to wait for its end."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Ask it to end, and wait."""
        from podium.runs.directory import find_run, root_flag

        if not self.name:
            raise ConfigError(f"podium stop: which run? `podium ps{root_flag(self.root)}` lists what is running")
        timeout = read_whole("--timeout", self.timeout)
        if timeout is None or timeout < 1:
            raise ConfigError(f"--timeout = {timeout}: must be at least 1 second")
        run = find_run(self.name, self.root)
        holder = run.holder()
        if holder is None:
            raise ConfigError(f"run {run.name} is not running; `podium ps{root_flag(run.path.parent)}` lists what is")
        if not holder.is_here:
            raise ConfigError(f"run {run.name} is running in {holder}: stop it there")
        _terminate(run, holder)
        deadline = time.monotonic() + timeout
        while run.holder() == holder:
            if time.monotonic() > deadline:
                raise PodiumError(
                    f"run {run.name} has not ended {timeout} s after its SIGTERM: {holder} may still be writing"
                    f" its checkpoint; `podium stop {run.argument} --timeout {2 * timeout}` waits longer"
                )
            time.sleep(LOOK_EVERY_S)
        return _tell_end(run)


def _terminate(run: "RunDirectory", holder: "Holder") -> None:
    try:
        os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it has ended meanwhile, by itself: the lock will say so
    except PermissionError:
        raise ConfigError(f"run {run.name} is running in {holder}, which is another user's: ask them") from None


def _tell_end(run: "RunDirectory") -> int:
    """What the run's own files say about its end."""
    from podium.runs.summary import read_summary

    summary = read_summary(run.path) or {}
    status, steps = summary.get("status", "no summary"), summary.get("env_steps") or 0
    if status in ("running", "no summary"):
        raise PodiumError(f"run {run.name} ended without a word; `podium resume {run.argument}` goes on where it can")
    saved = [int(path.name) for path in run.checkpoints.glob("*") if path.name.isdecimal()]
    checkpoint = f"checkpoint {max(saved)}" if saved else "no checkpoint yet"
    advice = "" if status == "done" or not saved else f"; `podium resume {run.argument}` goes on"
    print(f"run {run.name}: {status} after {steps:,} steps, {checkpoint}{advice}")
    return 0


def _run_row(run: "RunDirectory", holder: "Holder") -> list[object]:
    from podium.runs.overview import last_row
    from podium.runs.summary import read_summary

    row, summary = last_row(run), read_summary(run.path) or {}
    rate = row.get("steps_per_s")
    return [
        run.name,
        str(holder.pid) if holder.is_here else f"{holder.pid} on {holder.host}",
        summary.get("mode"),
        row.get("step"),
        None if rate is None else round(rate),
        row.get("episode_return"),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
    ]


def _show_workers(run: "RunDirectory", holder: "Holder") -> None:
    """A table of them, if the run's launcher has written down how they are."""
    from podium.orchestrator.status import read_status

    status = read_status(run.workers_json)
    if status is None or status.launcher != holder.pid:  # what a process before this one has left
        return
    note = f": {status.message}" if status.message else ""
    print(f"\n{run.name} is {status.state}{note}")
    headers = ["worker", "pid", "state", "for", "restarts", "rate", "waits for"]
    print_table(headers, [_worker_row(worker, status.host) for worker in status.workers])
    for worker in status.workers:
        if account := _account(worker.metrics):
            print(account)


def _worker_row(worker: "WorkerStatus", host: str) -> list[object]:
    from podium.runs.progress import format_time

    pid = "-" if worker.pid is None else str(worker.pid)
    return [
        f"{worker.role}-{worker.index}",
        pid if worker.host == host else f"{pid} on {worker.host}",
        worker.state,
        format_time(max(0.0, time.time() - worker.since)),
        worker.restarts,
        _rate(worker.metrics),
        _longest_wait(worker.metrics),
    ]


def _rate(metrics: Mapping[str, float | None]) -> str | None:
    """What a worker does in a second, whatever it is.

    >>> _rate({"queue": 3.0, "steps_per_s": 1234.5})
    '1,234 steps/s'
    """
    rates = (f"{value:,.0f} {name[:-6]}/s" for name, value in metrics.items() if name.endswith("_per_s") and value)
    return next(rates, None)


def _account(metrics: Mapping[str, float | None]) -> str | None:
    """What became of the steps that actors have made, which the learner reports as `samples_X`.

    >>> _account({"queue": 3.0, "samples_produced": 61107.0, "samples_trained": 60254.0, "samples_lost": 0.0})
    'steps: produced 61,107, trained 60,254, lost 0'
    """
    account = {name.removeprefix("samples_"): value for name, value in metrics.items() if name.startswith("samples_")}
    said = [f"{name.replace('_', ' ')} {value:,.0f}" for name, value in account.items() if value is not None]
    return f"steps: {', '.join(said)}" if said else None


def _longest_wait(metrics: Mapping[str, float | None]) -> str | None:
    """Workers report the part of their time that they wait for X as `wait_X`.

    >>> _longest_wait({"wait_credit": 0.82, "wait_parameters": 0.01})
    'credit 82%'
    """
    waits = [
        (value, name.removeprefix("wait_")) for name, value in metrics.items() if name.startswith("wait_") and value
    ]
    share, what = max(waits, default=(0.0, ""))
    return f"{what} {share:.0%}" if share >= 0.01 else None
