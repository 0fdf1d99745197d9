"""What a worker tells of itself while it runs.

beat = Beat(context, watchdog)
while ...:
    beat(worker.metrics())         # about once a second, from the thread that works
"""

import time
from collections.abc import Callable
from dataclasses import asdict

from podium.orchestrator.worker import WorkerContext
from podium.runs.summary import Samples
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
    """Metrics of all workers once a second, for the learner's report: its own, and what the others told the directory.

    The learner's have the run's accounting: what actors have produced by now, and what became of it.
    """

    def __init__(
        self,
        context: WorkerContext,
        worker: Learner | ReplayLearner | IndividualLearner,
        count: Callable[[], Samples],
    ) -> None:
        self._membership, self._name = context.membership, f"{context.role}-{context.index}"
        self._beat, self._worker, self._count = Beat(context), worker, count
        self._due = 0.0

    def __call__(self) -> dict[str, float]:
        now = time.monotonic()
        if now < self._due:
            return {}
        self._due = now + METRICS_S
        self._beat(self._worker.metrics() | {f"samples_{what}": n for what, n in asdict(self._count()).items()})
        reported = self._membership.worker_metrics | {self._name: self._membership.metrics}
        return {f"{worker}/{name}": value for worker, metrics in reported.items() for name, value in metrics.items()}
