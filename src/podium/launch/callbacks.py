"""Calls a run's callbacks: from its recorder in one process, from the reports of its learner in many."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from podium.core.callback import Callback, Episode, Training
from podium.core.errors import ConfigError
from podium.core.types import Tree
from podium.launch.plan import Plan
from podium.launch.policy import Policy, agent_of, load_policy
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.recorder import Recorder


class Calls:
    """The callbacks of one run, and the run as they see it."""

    def __init__(self, callbacks: Sequence[Callback], plan: Plan, directory: RunDirectory) -> None:
        self._callbacks = callbacks
        self._plan = plan
        self._directory = directory
        self._sequence = 0
        self._names: set[str] = set()  # that were logged: reports of a learner's process have them, too
        self._saved: set[int] = set(self._updates())
        self.training = Training(plan.experiment, directory.path)

    def attach(self, recorder: Recorder, params: Callable[[], Tree]) -> None:
        """Be called by the recorder of a run in this process, whose parameters `params` gives."""
        if not self._callbacks:
            return
        agent = agent_of(self._plan)
        self.training.find_policy = lambda: Policy(agent, params(), recorder.counts.updates, self._directory)
        recorder.before_write, recorder.on_save = self._report, self._checkpoint
        recorder.on_episode = self._episode if _overrides(self._callbacks, "on_episode") else None

    def start(self) -> None:
        """Before the first update."""
        if not self._plan.in_one_process:
            self.training.find_policy = self._load
        for callback in self._callbacks:
            callback.on_start(self.training)

    def follow(self, row: dict[str, Any]) -> bool:
        """A report of the learner's process, and checkpoints since the last. False: the run is to stop."""
        if self._callbacks and not self._plan.in_one_process:
            logged = self._report(row)
            if logged:
                self._sequence += 1
                write_logged(self._directory, self._sequence, logged)
            for update in sorted(set(self._updates()) - self._saved):
                self._checkpoint(update)
        return not self.training.stopped

    def end(self, summary: dict[str, Any]) -> None:
        """After the last line of the summary."""
        for callback in self._callbacks:
            callback.on_end(self.training, summary)

    def _report(self, row: dict[str, Any]) -> dict[str, float]:
        training = self.training
        training.update, training.step = row["update"], row["step"]
        for callback in self._callbacks:
            callback.on_report(training, row)
        logged, training.logged = training.logged, {}
        if taken := sorted((logged.keys() - self._names) & row.keys()):
            raise ConfigError(f"training.log: {taken[0]!r} is a metric of the run itself: choose another name")
        self._names |= logged.keys()
        return logged

    def _episode(self, episode_return: float, length: int) -> None:
        for callback in self._callbacks:
            callback.on_episode(self.training, Episode(episode_return, length))

    def _checkpoint(self, update: int) -> None:
        self._saved.add(update)
        for callback in self._callbacks:
            callback.on_checkpoint(self.training, update)

    def _updates(self) -> list[int]:
        return Checkpoints(self._directory.checkpoints).updates() if self._directory.checkpoints.exists() else []

    def _load(self) -> Policy | None:
        return load_policy(self._directory) if self._updates() else None


def check_callbacks(callbacks: Sequence[Any], plan: Plan) -> None:
    """Raise ConfigError for what is no callback, or would never be called."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: {callback!r}: must be an object of a class that extends podium.Callback")
    if not plan.in_one_process and _overrides(callbacks, "on_episode"):
        raise ConfigError(
            "callbacks: on_episode is called in runs of one process; add topology.transport=memory, or use on_report"
        )


def _overrides(callbacks: Sequence[Callback], name: str) -> bool:
    return any(getattr(type(callback), name) is not getattr(Callback, name) for callback in callbacks)


def write_logged(directory: RunDirectory, sequence: int, metrics: Mapping[str, float]) -> None:
    """Hand a launcher's own metrics to its learner, whose file metrics.jsonl is."""
    draft = directory.logged_json.with_suffix(".draft")
    draft.write_text(json.dumps([sequence, metrics]), encoding="utf-8")
    draft.replace(directory.logged_json)


class LoggedMetrics:
    """What the launcher's callbacks logged since the last call."""

    def __init__(self, directory: RunDirectory) -> None:
        self._path = directory.logged_json
        self._path.unlink(missing_ok=True)
        self._sequence = 0

    def __call__(self) -> dict[str, float]:
        try:
            sequence, metrics = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if sequence == self._sequence:
            return {}
        self._sequence = sequence
        return metrics
