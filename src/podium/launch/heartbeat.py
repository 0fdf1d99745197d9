"""What a worker tells of itself while it runs.

beat = Beat(context, watchdog)
while ...:
    beat(worker.metrics())         # about once a second, from the thread that works
"""

import time
from collections.abc import Callable
from dataclasses import asdict

from podium.orchestrator.status import read_status
from podium.orchestrator.worker import WorkerContext
from podium.runs.accounting import tally
from podium.runs.directory import RunDirectory
from podium.workers.individual_learner import IndividualLearner
from podium.workers.learner import Learner
from podium.workers.replay_learner import ReplayLearner

METRICS_S = 1.0


class Beat:
    """Tells the directory how a worker is: counts as rates, seconds waited as parts of the time since the last beat.

    What it gets on by is fragments, batches or plays.
    """

    RATES = ("updates", "steps", "rows")

    def __init__(self, context: WorkerContext, watchdog: Callable[[], None] = lambda: None) -> None:
        self._membership = context.membership
        self._watchdog = watchdog
        self._before: dict[str, float] = {}
        self._at = time.monotonic()

    def __call__(self, counts: dict[str, float]) -> None:
        self._watchdog()
        now = time.monotonic()
        seconds, grown = now - self._at, {name: value - self._before.get(name, 0.0) for name, value in counts.items()}
        self._before, self._at = counts, now
        rates = {f"{name}_per_s": grown[name] / seconds for name in self.RATES if name in counts}
        waits = {
            f"wait_{name.removesuffix('_wait_s')}": min(1.0, part / seconds)
            for name, part in grown.items()
            if name.endswith("_wait_s")
        }
        others = {name: value for name, value in counts.items() if not name.endswith("_wait_s")}
        self._membership.metrics = rates | waits | others
        self._membership.progress = int(
            sum(counts.get(name, 0) for name in ("updates", "fragments", "batches", "plays"))
        )


class WorkerMetrics:
    """Metrics of all workers once a second, for the learner's report: as the launcher last wrote them.

    The learner's own have the run's account: what actors have produced by now, and what became of it.
    """

    def __init__(
        self, context: WorkerContext, run: RunDirectory, worker: Learner | ReplayLearner | IndividualLearner
    ) -> None:
        self._beat, self._run, self._worker = Beat(context), run, worker
        self._since = context.payload["since"]
        self._due = 0.0

    def __call__(self) -> dict[str, float]:
        now = time.monotonic()
        if now < self._due:
            return {}
        self._due = now + METRICS_S
        samples = asdict(tally(self._run.accounting, self._since, running=True))
        self._beat(self._worker.metrics() | {f"samples_{what}": steps for what, steps in samples.items()})
        status = read_status(self._run.workers_json)
        return {
            f"{worker.role}-{worker.index}/{name}": value
            for worker in (status.workers if status else ())
            for name, value in worker.metrics.items()
            if value is not None
        }
