"""Callbacks: a user's own code at a run's start, reports, episodes, checkpoints and end.

class Watch(podium.Callback):
    def on_report(self, training, report):
        training.log({"weight_norm": norm(training.policy.params)})
        if report.get("episode_return", 0) > 475:
            training.stop()

podium.train("ppo", "CartPole-v1", callbacks=[Watch()])
"""

import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podium.core.config import Experiment
from podium.core.errors import ConfigError


class Episode(NamedTuple):
    """An episode that ended in training: its undiscounted return, and its steps."""

    episode_return: float
    length: int


class Training:
    """The run that callbacks are called from."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        self.experiment = experiment
        self.path = path
        self.update = 0
        self.step = 0
        self.stopped = False
        self.find_policy: Callable[[], Any] = lambda: None
        self.logged: dict[str, float] = {}

    @property
    def policy(self) -> Any:
        """The policy as it is now. In a run of many processes it is that of the newest checkpoint; None before one."""
        return self.find_policy()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Put numbers into metrics.jsonl and the trackers: from `on_report` into that report, else into the next one.

        In a run of many processes they are in a later report.
        """
        for name, value in metrics.items():
            if not isinstance(value, numbers.Real) and getattr(value, "shape", None) != ():
                raise ConfigError(f"training.log: {name} = {value!r}: must be a number")
            self.logged[str(name)] = float(value)

    def stop(self) -> None:
        """End the run at this report, with a checkpoint."""
        self.stopped = True


class Callback:
    """What a run calls, in the process and thread of `podium.train`. Override what you need."""

    def on_start(self, training: Training) -> None:
        """Training begins, or goes on."""

    def on_report(self, training: Training, report: dict[str, Any]) -> None:
        """An update has been made; `report` is the row that metrics.jsonl gets."""

    def on_episode(self, training: Training, episode: Episode) -> None:
        """An episode has ended. Runs of one process only."""

    def on_checkpoint(self, training: Training, update: int) -> None:
        """The checkpoint after this update is made, or being written."""

    def on_end(self, training: Training, summary: dict[str, Any]) -> None:
        """The run has ended, whatever by: summary["status"] says."""
