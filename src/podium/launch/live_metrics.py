"""A run's metrics for whoever asks while it goes: its last report and its workers', as a Prometheus endpoint."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from podium.runs.exposition import MetricsServer, Snapshot
from podium.runs.progress import Progress
from podium.runs.recorder import OnReport


@dataclass
class LiveMetrics:
    """What was reported last. Replaced as a whole, so that a reader in another thread never sees half of a report."""

    run: str
    report: Mapping[str, Any] = field(default_factory=dict)
    workers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def watched_by(self, on_report: OnReport | None) -> OnReport:
        """A callback that keeps the report, and then asks the user's own."""

        def watch(row: dict[str, Any]) -> object:
            self.report = row
            return None if on_report is None else on_report(row)

        return watch

    def snapshot(self) -> Snapshot:
        """The run at this moment. A report's metrics of single workers have a slash in their names."""
        own = {name: value for name, value in self.report.items() if "/" not in name}
        return Snapshot(self.run, own, self.workers)


@contextmanager
def exposed(port: int | None, run: str, bar: Progress) -> Iterator[LiveMetrics]:
    """LiveMetrics of a run, served on a port of this machine if one is given."""
    metrics = LiveMetrics(run)
    if port is None:
        yield metrics
        return
    with MetricsServer(port, metrics.snapshot) as server:
        bar.say(f"metrics at {server.url}")
        yield metrics
