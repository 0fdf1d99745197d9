"""Watches over the workers of a program: restarts what dies, replaces what hangs, and ends them all in the end.

supervisor = Supervisor(program, spawner, directory)
supervisor.start()
while supervisor.outcome is None:       # supervisor.stop("Ctrl-C") asks for it, from the same thread
    supervisor.tick()
    time.sleep(0.05)
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from podium.orchestrator.program import Program
from podium.orchestrator.spawner import Spawner
from podium.orchestrator.status import RunStatus, StatusFile, WorkerStatus
from podium.orchestrator.worker import (
    ENV_FAILED,
    FAILED,
    FINISHED,
    HOPELESS,
    MISCONFIGURED,
    STOPPED,
    TRACEBACK,
    describe_exit,
)
from podium.orchestrator.worker_record import WorkerRecord
from podium.protocol.directory import Directory

INTERRUPTED = 130
LAST_WORDS = "; its last words:"


@dataclass(frozen=True)
class Limits:
    """How long supervision waits for what, in seconds."""

    start_s: float = 120.0  # from a worker's start to its registration: imports
    silence_s: float = 0.0  # from a worker's last renewal to its replacement; at least a lease
    leave_s: float = 4.0  # from stop to SIGTERM, and from SIGTERM to SIGKILL
    checkpoint_s: float = 60.0  # the same for the learner, which has something to save
    exit_s: float = 30.0  # from a worker's farewell to its process's end
    backoff_s: float = 0.1  # before the first restart; doubles
    backoff_max_s: float = 5.0
    deaths: int = 5  # of one worker without progress in between: then the run has failed


LIMITS = Limits()


@dataclass(frozen=True)
class Outcome:
    """How the run ended: done (the learner finished), stopped (by request) or failed, and with which exit code.

    `cause` is the exit code of the worker that a failed run ended by: what kind of error it was.
    """

    status: Literal["done", "stopped", "failed"]
    message: str
    exit_code: int
    cause: int = FAILED


class Supervisor:
    """One for a run; all methods are called from one thread.

    `restarts` counts by role, `causes` has a line for each restart of a worker, by its name.

    The run is done when all workers of the role `lead` have finished. `say` is given lines for whoever reads along.
    """

    def __init__(
        self,
        program: Program,
        spawner: Spawner,
        directory: Directory,
        *,
        lead: str = "learner",
        limits: Limits = LIMITS,
        say: Callable[[str], None] | None = None,
        status: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawner, self._directory, self._limits, self._clock = spawner, directory, limits, clock
        self._say = say or (lambda line: None)
        self._records = [WorkerRecord(group, index) for group in program.groups for index in range(group.count)]
        self._leads = [record for record in self._records if record.group.role == lead]
        if not self._leads:
            raise ValueError(f"the program has no group {lead!r}: nothing would end the run")
        self._status = StatusFile(status) if status else None
        self.restarts: Counter[str] = Counter()
        self.causes: dict[str, list[str]] = {}
        self.outcome: Outcome | None = None
        self._ending: Outcome | None = None  # what the outcome will be, once nothing is left
        self._ending_since = 0.0
        self._leads_gone: float | None = None
        self._ticked = self._judge_from = clock()

    def start(self) -> None:
        """Start all workers."""
        self._ticked = now = self._clock()
        for record in self._records:
            self._start(record, now)
        self._report()

    def tick(self) -> None:
        """Do everything that is due; takes milliseconds. Call it about every 50."""
        if self.outcome:
            return
        now = self._clock()
        if now - self._ticked > self._directory.lease_s / 2:
            # This process was stopped or starved: leases ran out that nobody could renew. Give them another chance.
            self._judge_from = now + self._directory.lease_s
        self._ticked = now
        for record in self._records:
            if record.handle:
                self._watch(record, now)
            elif record.retry_at is not None and now >= record.retry_at:
                self._start(record, now)
        if self._ending:
            self._press(now)
        self._report()

    def stop(self, reason: str) -> None:
        """Ask all workers to stop: the learner may write a checkpoint first. `outcome` comes when they are gone.

        Not for signal handlers, which interrupt a tick in its middle: set a flag there, and stop between two ticks.
        """
        self._end(Outcome("stopped", reason, INTERRUPTED))

    def close(self) -> None:
        """Leave no process, now: for a launcher that cannot wait. Twice is harmless."""
        self._directory.request_stop()
        for record in self._records:
            if record.handle:
                record.handle.kill()
        left = [
            record.name
            for record in self._records
            if record.handle and record.handle.wait(self._limits.leave_s) is None
        ]
        for record in self._records:
            record.handle = record.retry_at = None
            record.turn("ended")
        if self.outcome is None:
            self.outcome = self._ending or Outcome("stopped", "the launcher left", INTERRUPTED)
        if left:
            self.outcome = Outcome("failed", f"{', '.join(left)} cannot be ended", 1)
        self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accounts(self) -> list[bytes]:
        """What each incarnation of each worker last reported of its accounting."""
        return self._directory.accounts()

    def status(self) -> RunStatus:
        """How all workers are."""
        outcome = self.outcome or self._ending
        state = self.outcome.status if self.outcome else "stopping" if self._ending else "running"
        workers = [self._worker_status(record) for record in self._records]
        return RunStatus(os.getpid(), self._spawner.host, state, outcome.message if outcome else "", workers)

    def _worker_status(self, record: WorkerRecord) -> WorkerStatus:
        entry = self._directory.last(*record.identity)
        return WorkerStatus(
            *record.identity,
            pid=(entry.pid if entry else record.handle.pid) if record.handle else None,  # never that of a dead one
            host=entry.host if entry else self._spawner.host,
            state=record.state,
            since=record.since,
            restarts=record.restarts,
            progress=entry.progress if entry else 0,
            metrics=dict(entry.metrics) if entry else {},
        )

    def _report(self) -> None:
        if self._status:
            self._status.offer(self.status())

    def _start(self, record: WorkerRecord, now: float) -> None:
        if record.retry_at is not None:
            record.incarnation += 1
            record.restarts += 1
            self.restarts[record.group.role] += 1
        record.begin(now)
        try:
            record.handle = self._spawner.start(record.group, record.index, record.incarnation)
        except OSError as error:
            self._died(record, f"could not be started: {error}", now)

    def _watch(self, record: WorkerRecord, now: float) -> None:
        assert record.handle
        if (code := record.handle.poll()) is not None:
            self._ended(record, code, now)
            return
        if record.handle.pending:
            record.await_place(now)
            return
        if record.state == "pending":
            record.begin(now)
        state = self._directory.state(*record.identity)
        if state == "live" and record.state == "starting":
            entry = self._directory.last(*record.identity)
            if entry and (entry.ready or entry.progress):
                record.turn("running")
        elif state == "expired" and record.state == "running":
            record.turn("silent")
        elif state == "live" and record.state == "silent":
            record.turn("running")
        if state == "withdrawn" and record.left_at is None:
            record.left_at = now
        if not self._ending and not record.verdict and (verdict := self._overdue(record, state, now)):
            record.verdict = verdict
            record.handle.kill()

    def _overdue(self, record: WorkerRecord, state: str, now: float) -> str | None:
        """Why a worker that lives must be killed, if it must."""
        limits, lease_s = self._limits, self._directory.lease_s
        if state == "unknown" and now - record.started > limits.start_s:
            return f"did not register within {limits.start_s:g} s"
        if state == "expired" and now >= self._judge_from:
            entry, silence_s = self._directory.last(*record.identity), max(lease_s, limits.silence_s)
            if entry is None or now - entry.renewed > silence_s:
                return f"did not renew its lease for {silence_s:g} s: stopped, hung, or cut off"
        if record.left_at is not None and now - record.left_at > limits.exit_s:
            return f"did not exit within {limits.exit_s:g} s of its end"
        return None

    def _ended(self, record: WorkerRecord, code: int, now: float) -> None:
        assert record.handle
        cause = self._cause(record, code)
        self._directory.note_account(*record.identity, record.handle.account())
        record.handle = None
        self._directory.withdraw(*record.identity)
        if record in self._leads and code == FINISHED:
            record.finished = True
            record.turn("ended")
            if all(lead.finished for lead in self._leads):
                self._end(Outcome("done", "", 0))
        elif self._ending:
            record.turn("ended")
            if record in self._leads and code != STOPPED:
                self._end(Outcome("failed", f"{record.name} failed while it stopped: {cause}", 1))
        else:
            self._judge(record, code, cause, now)

    def _cause(self, record: WorkerRecord, code: int) -> str:
        assert record.handle
        failure = record.handle.failure()
        if record.verdict:
            return record.verdict
        if code < 0 and failure:
            return f"{describe_exit(code)}{LAST_WORDS}\n{failure}"
        return failure or describe_exit(code)

    def _judge(self, record: WorkerRecord, code: int, cause: str, now: float) -> None:
        """Whether a death is one to go on from."""
        if code == MISCONFIGURED:
            self._end(Outcome("failed", cause.removeprefix("error: "), MISCONFIGURED, code))
        elif code in (HOPELESS, ENV_FAILED):
            self._end(Outcome("failed", f"{record.name}: {cause.removeprefix('error: ')}", 1, code))
        else:
            self._died(record, cause, now)

    def _died(self, record: WorkerRecord, cause: str, now: float) -> None:
        entry = self._directory.last(*record.identity)
        record.deaths = 1 if entry and entry.progress > 0 else record.deaths + 1
        if not record.group.restart:
            self._end(Outcome("failed", f"{record.name} died, and is not to be restarted: {cause}", 1))
        elif record.deaths >= self._limits.deaths:
            self._end(Outcome("failed", f"{record.name} died {record.deaths} times without progress: {cause}", 1))
        else:
            delay = min(self._limits.backoff_s * 2 ** (record.deaths - 1), self._limits.backoff_max_s)
            record.retry_at = now + delay
            record.turn("restarting")
            lines = cause.splitlines()
            line = (lines[-1] if lines[0] == TRACEBACK else lines[0]).removesuffix(LAST_WORDS)
            self.causes.setdefault(record.name, []).append(line.removeprefix("error: "))
            self._say(f"{record.name} died ({line}); starting it again in {delay:g} s")

    def _end(self, outcome: Outcome) -> None:
        """Begin to end the run, or change how it will have ended: failed is above done, and done above stopped."""
        order = ("stopped", "done", "failed")
        if self._ending is None:
            self._directory.request_stop()
            self._ending_since = self._clock()
            for record in self._records:
                if not record.handle:
                    record.retry_at = None
                    record.turn("ended")
        if self._ending is None or order.index(outcome.status) > order.index(self._ending.status):
            self._ending = outcome

    def _press(self, now: float) -> None:
        """Ask, terminate, kill: workers leave by themselves after the learner has; each step has its limit."""
        limits = self._limits
        if self._leads_gone is None and not any(lead.handle for lead in self._leads):
            self._leads_gone = now
        for record in self._records:
            if not record.handle:
                continue
            if record in self._leads:
                overdue_s = now - self._ending_since - limits.checkpoint_s
            else:
                overdue_s = now - self._leads_gone - limits.leave_s if self._leads_gone is not None else 0.0
            if overdue_s > 2 * limits.leave_s + limits.exit_s:
                self._end(Outcome("failed", f"{record.name} cannot be ended", 1))
                record.handle = None
            elif overdue_s > limits.leave_s:
                record.verdict = record.verdict or "did not stop when it was told to, and was killed"
                record.handle.kill()
            elif overdue_s > 0 and not record.terminated:
                record.terminated = True
                record.handle.terminate()
        if not any(record.handle for record in self._records):
            self.outcome = self._ending
