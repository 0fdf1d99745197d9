"""A run in many processes, seen from its launcher: starts them, watches over them, and closes the account."""

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.core import toml
from podium.core.errors import ConfigError, EnvError, TrainingError
from podium.core.machine import count_cores
from podium.launch.deployment import Deployment
from podium.launch.live_metrics import LiveMetrics
from podium.launch.plan import Plan
from podium.launch.program import make_program
from podium.launch.recording import Beginning
from podium.orchestrator.backends import choose_back_end
from podium.orchestrator.program import check
from podium.orchestrator.supervisor import LIMITS, Outcome, Supervisor
from podium.orchestrator.worker import ENV_FAILED, MISCONFIGURED
from podium.runs.accounting import go_back, next_incarnation, save_reports, tally
from podium.runs.directory import RunDirectory
from podium.runs.mirror import followed, last_claim
from podium.runs.progress import Progress
from podium.runs.recorder import OnReport
from podium.runs.summary import (
    EpisodeReturn,
    Staleness,
    Summary,
    amend_summary,
    read_summary,
    write_summary,
)
from podium.runs.tail import Follower

TICK_S = 0.05


def run(
    plan: Plan,
    directory: RunDirectory,
    beginning: Beginning,
    init_from: RunDirectory | None,
    bar: Progress,
    interrupt: threading.Event,
    on_report: OnReport,
    metrics: LiveMetrics,
    deployment: Deployment,
) -> None:
    """Run a plan's program to its end; raises if it failed."""
    storage = deployment.open_storage(directory.name)
    since = next_incarnation(directory.accounting)
    if storage is not None:
        since = max(since, last_claim(storage) + 1)
    if plan.replay_workers:
        go_back(directory.accounting, beginning.counts.env_steps)
    _begin_summary(plan, directory, beginning, since)
    news = NewRows(directory.metrics, beginning.counts.updates)
    payload = {
        "experiment": toml.dump(plan.experiment),
        "choices": list(plan.choices),
        "run": str(directory.path.absolute()),
        "since": since,
        "track": list(beginning.track),
        "notes": list(beginning.counts.notes),
        "init_from": None if init_from is None else str(init_from.path.absolute()),
        # On a cluster, accounts are kept where the worker is.
        "accounting": None if deployment.is_cluster else str(directory.accounting.absolute()),
        "storage": None if storage is None else storage.url,
    }
    program = make_program(plan, payload)
    for warning in check(program, count_cores()):
        bar.say(f"warning: {warning}")
    bar.say(f"starting {', '.join(f'{group.count} {group.role}(s)' for group in program.groups)}")
    limits = replace(LIMITS, silence_s=plan.experiment.limits.silence_s) if deployment.is_cluster else LIMITS
    apart = storage if deployment.is_cluster else None  # what the learner writes on another host
    run_program = choose_back_end(deployment.on)
    options = {"limits": limits, "status": directory.workers_json, "say": bar.say}
    with run_program(program, directory.logs, **options) as supervisor, followed(apart, directory):
        stopped = _watch(supervisor, news, bar, interrupt, on_report, metrics)
    if deployment.is_cluster:
        save_reports(directory.accounting, supervisor.accounts())
    outcome = supervisor.outcome
    assert outcome is not None
    amend_summary(
        directory.path,
        tally(directory.accounting, since, reports=supervisor.accounts()),
        restarts=dict(supervisor.restarts),
        restart_causes=dict(supervisor.causes),
        status=_status(directory, outcome, stopped),
    )
    if outcome.status == "failed":
        raise {MISCONFIGURED: ConfigError, ENV_FAILED: EnvError}.get(outcome.cause, TrainingError)(outcome.message)


def _watch(
    supervisor: Supervisor,
    news: "NewRows",
    bar: Progress,
    interrupt: threading.Event,
    on_report: OnReport,
    metrics: LiveMetrics,
) -> bool:
    """Until the program has ended. Returns whether `on_report` asked for that."""
    supervisor.start()
    stopped = False
    pause = threading.Event()
    while supervisor.outcome is None:
        supervisor.tick()
        for row in news.read():
            _show(bar, row)
            if not stopped and on_report(row) is False:
                stopped = True
                supervisor.stop("on_report returned False")
        metrics.workers = {
            f"{worker.role}-{worker.index}": worker.metrics | {"restarts": worker.restarts}
            for worker in supervisor.status().workers
        }
        if interrupt.is_set():
            supervisor.stop("interrupted")
        pause.wait(TICK_S)
    for row in news.read():
        _show(bar, row)
        if not stopped:
            on_report(row)
    return stopped


def _show(bar: Progress, row: Mapping[str, Any]) -> None:
    bar.update(row["step"], row.get("episode_return"), row.get("steps_per_s"), wall_s=row.get("wall_s", 0.0))


def _begin_summary(plan: Plan, directory: RunDirectory, beginning: Beginning, since: int) -> None:
    """There is one from the first moment: a learner that is stopped while it imports has not written any."""
    if read_summary(directory.path) is not None:
        amend_summary(directory.path, status="running")
        return
    counts = beginning.counts
    summary = Summary(
        status="running",
        env_steps=counts.env_steps,
        updates=counts.updates,
        wall_s=counts.wall_s,
        compile_s=counts.compile_s,
        steps_per_s=None,
        episode_return=EpisodeReturn(),
        samples=tally(directory.accounting, since),
        staleness=Staleness(),
        restarts={},
        mode=plan.mode,
        env_library=plan.env.library,
        seed=plan.experiment.seed,
        notes=tuple(counts.notes),
    )
    write_summary(directory.path, summary)


def _status(directory: RunDirectory, outcome: Outcome, stopped: bool) -> str:
    """As the learner wrote it, but for what it could not know."""
    if outcome.status == "failed":
        return "failed"
    if stopped:
        return "stopped"
    written = (read_summary(directory.path) or {}).get("status", "running")
    return "interrupted" if written == "running" else written


class NewRows:
    """Rows of metrics.jsonl as the learner appends them. A learner that is restored takes back its last ones."""

    def __init__(self, path: Path, update: int) -> None:
        self._follower, self._update = Follower(path, sys.maxsize), update

    def read(self) -> list[dict[str, Any]]:
        """Whole rows that have come since the last call, of updates that were not read before."""
        rows = []
        for row in map(json.loads, self._follower.read()):
            if row.get("update", 0) > self._update:
                self._update = row["update"]
                rows.append(row)
        return rows
