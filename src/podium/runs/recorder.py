"""What a run writes down while it goes: reports, counts, checkpoints; and when it must end."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.config import Experiment, LimitsConfig
from podium.core.errors import TrainingError
from podium.core.types import Tree
from podium.runs.checkpoint import Checkpoints
from podium.runs.metrics import MetricsLog
from podium.runs.outcomes import Outcomes
from podium.runs.progress import Progress
from podium.runs.rate import Rate
from podium.runs.summary import EpisodeReturn, Samples, Staleness, Status

WINDOW = 100
"""Episodes that the reported return is the mean of, at most; `limits.target_return` is compared with so many."""
SHORTEST_WINDOW = 10
WINDOW_SHARE = 5
"""The reported return is that of the last fifth of the episodes: of a short run, what it ended with."""

OnReport = Callable[[dict[str, Any]], object]
CountSamples = Callable[[], Samples]
"""Gives what this process's actors and learner counted."""


@dataclass
class Counts:
    """What a run has done so far. It is saved with every checkpoint, and a resumed run goes on from it."""

    updates: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    compile_s: float = 0.0
    episodes: int = 0
    episodes_not_finite: int = 0
    produced: int = 0
    undone: int = 0
    lost: int = 0
    stale: int = 0
    staleness_sum: float = 0.0
    staleness_max: int = 0
    last_returns: list[float] = field(default_factory=list)
    last_lengths: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Recorder:
    """Takes an update's metrics and keeps all account of the run.

    recorder.own_samples = lambda: Samples(produced=actor.steps, in_flight=waiting)
    recorder.start(compile_s)
    while not recorder.ended:
        recorder.report(steps, metrics, episodes, staleness_mean, staleness_max)
        if recorder.checkpoint_due():
            recorder.save(tree)
    """

    def __init__(
        self,
        experiment: Experiment,
        log: MetricsLog,
        progress: Progress,
        checkpoints: Checkpoints,
        counts: Counts,
        interrupt: threading.Event,
        on_report: OnReport | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        self.counts = counts
        self.outcomes = outcomes or Outcomes()
        self.ended: Status | None = None
        self.limit: str | None = None  # the field of `limits` that was reached
        self.own_samples: CountSamples = Samples
        self.before_write: Callable[[dict[str, Any]], Mapping[str, float]] = lambda row: {}
        self.on_episode: Callable[[float, int], None] | None = None
        self.on_save: Callable[[int], None] = lambda update: None
        self.tally: CountSamples | None = None  # of all processes of the run, where they keep account themselves
        self._interrupt = interrupt
        self._experiment = experiment
        self._log = log
        self._progress = progress
        self._checkpoints = checkpoints
        self._on_report = on_report
        self._returns: deque[float] = deque(counts.last_returns, WINDOW)
        self._lengths: deque[int] = deque(counts.last_lengths, WINDOW)
        self._saved_update = counts.updates
        self._steps_at_start = counts.env_steps
        self._produced_before = counts.produced
        self._wall_before = counts.wall_s
        self._compile_s = 0.0
        self._began = self._saved_at = time.monotonic()
        self._rate = Rate(self._began)

    def start(self, compile_s: float) -> None:
        """Training begins now: rates and limits leave out what came before, but for compilation."""
        now = time.monotonic()
        self._compile_s = compile_s
        self.counts.compile_s += compile_s
        self._began = now - compile_s
        self._saved_at, self._rate = now, Rate(now)

    def measure_rate(self, steps: int) -> None:
        """So many steps have been made since the last call, or the start: for the rate that is shown.

        Random play before an off-policy algorithm learns is many times faster: its rate says nothing.
        """
        now = time.monotonic()
        if self.counts.env_steps < getattr(self._experiment.algorithm, "learning_starts", 0):
            self._rate = Rate(now)
        else:
            self._rate.add(steps, now)

    def report(
        self,
        steps: int,
        metrics: Mapping[str, Any],
        episodes: Iterable[tuple[float, int]],
        staleness_mean: float = 0.0,
        staleness_max: int = 0,
        workers: Mapping[str, float] | None = None,
        outcomes: np.ndarray | None = None,
    ) -> None:
        """One update has been made, on so many valid steps. `workers`: metrics such as `actor-2/steps_per_s`;
        `outcomes`: metrics of the episodes, [n, k]."""
        counts = self.counts
        counts.updates += 1
        counts.env_steps += steps
        counts.wall_s = self._wall_before + time.monotonic() - self._began
        counts.staleness_sum += staleness_mean
        counts.staleness_max = max(counts.staleness_max, staleness_max)
        for episode_return, length in episodes:
            counts.episodes += 1
            if self.on_episode is not None:
                self.on_episode(episode_return, length)
            if math.isfinite(episode_return):
                self._returns.append(episode_return)
                self._lengths.append(length)
            else:  # of a simulator that has lost its numbers: it would hide the return of a hundred others
                counts.episodes_not_finite += 1
        values = {name: float(value) for name, value in metrics.items()}
        row = {
            "update": counts.updates,
            "step": counts.env_steps,
            "wall_s": round(counts.wall_s, 3),
            "steps_per_s": self._rate.value,
            "episode_return": _mean(self._recent(self._returns)),
            "episode_length": _mean(self._recent(self._lengths)),
            "episodes": counts.episodes,
            "episodes_not_finite": counts.episodes_not_finite or None,
            "staleness": staleness_mean,
            **self.outcomes.means(outcomes),
            **values,
            **(workers or {}),
        }
        row |= self.before_write({name: value for name, value in row.items() if value is not None})
        self._log.write({name: value for name, value in row.items() if value is not None})
        self._refuse_not_finite(values)
        self._progress.update(counts.env_steps, row["episode_return"], row["steps_per_s"], wall_s=counts.wall_s)
        self._judge(row)

    def end_if_interrupted(self) -> bool:
        """Whether somebody wants the run to end; it then does."""
        if self._interrupt.is_set():
            self.ended = "interrupted"
        return self._interrupt.is_set()

    def end_if_time_is_up(self) -> bool:
        """Whether `limits.wall_s` has passed, where no report comes that would say so; the run then ends."""
        now, limit = self._wall_before + time.monotonic() - self._began, self._experiment.limits.wall_s
        if limit is not None and now >= limit:
            self.counts.wall_s, self.ended, self.limit = now, "done", "wall_s"
        return self.ended is not None

    def checkpoint_due(self) -> bool:
        """Whether the configured time or number of updates has passed since the last one."""
        config = self._experiment.checkpoint
        if config.every_s is not None and time.monotonic() - self._saved_at >= config.every_s:
            return True
        every = config.every_updates
        return every is not None and self.counts.updates // every > self._saved_update // every

    def save(self, tree: Tree) -> None:
        """Save the training state with the counts that belong to it; returns once the state is copied."""
        self._refuse_bad_state(tree)
        # Of what this process produced, the checkpoint knows what was trained; the rest may yet be lost.
        self.counts.produced = self._produced_before + self.counts.env_steps - self._steps_at_start
        self.counts.last_returns = list(self._returns)
        self.counts.last_lengths = list(self._lengths)
        self._log.flush()
        self._checkpoints.save(self.counts.updates, tree, asdict(self.counts), _mean(self._recent(self._returns)))
        self._saved_update = self.counts.updates
        self._saved_at = time.monotonic()
        self.on_save(self.counts.updates)

    def episode_return(self) -> EpisodeReturn:
        """Mean and standard deviation of the last training episodes."""
        returns = self._recent(self._returns)
        return (
            EpisodeReturn(float(np.mean(returns)), float(np.std(returns)), len(returns)) if returns else EpisodeReturn()
        )

    def _recent(self, values: Collection[float]) -> list[float]:
        """Those of the last episodes that are reported."""
        counts, target = self.counts, self._experiment.limits.target_return
        # With a target, the return that is shown is the one that is compared with it.
        size = window(counts.episodes - counts.episodes_not_finite) if target is None else WINDOW
        return list(values)[-size:]

    def samples(self) -> Samples:
        """The account of this run, over all its processes."""
        if self.tally is not None:
            return self.tally()
        counts, own = self.counts, self.own_samples()
        return Samples(
            produced=self._produced_before + own.produced,
            trained=counts.env_steps,
            stale=counts.stale + own.stale,
            lost=counts.lost + own.lost,
            undone=counts.undone,
            in_flight=own.in_flight,
        )

    def staleness(self) -> Staleness:
        """Over all updates so far."""
        return Staleness(self.counts.staleness_sum / max(1, self.counts.updates), self.counts.staleness_max)

    def steps_per_s(self) -> float | None:
        """This process's rate, without compilation."""
        seconds = self.counts.wall_s - self._wall_before - self._compile_s
        return (self.counts.env_steps - self._steps_at_start) / seconds if seconds > 0 else None

    def _refuse_not_finite(self, values: Mapping[str, float]) -> None:
        bad = sorted((name for name, value in values.items() if not math.isfinite(value)), key=lambda n: n != "loss")
        if bad:
            others = f" ({', '.join(bad[1:])} too)" if bad[1:] else ""
            raise self._stop(f"{bad[0]} is {values[bad[0]]} at update {self.counts.updates}{others}")

    def _refuse_bad_state(self, tree: Tree) -> None:
        """A loss can be the last finite one: the parameters that it gave must not replace a good checkpoint."""
        is_hyper = self._experiment.algorithm.is_hyper
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree["train"], is_leaf=is_hyper):
            if is_hyper(leaf):  # as the user set them: a bound of inf bounds nothing
                continue
            if not jnp.issubdtype(leaf.dtype, jnp.floating):  # keys of jax.random are no numbers
                continue
            values = np.asarray(leaf)  # by NumPy: jax would compile two programs for each shape
            if not np.isfinite(values).all():
                bad = "nan" if np.isnan(values).any() else "inf"
                raise self._stop(f"train{jax.tree_util.keystr(path)} has {bad} after update {self.counts.updates}")

    def _stop(self, why: str) -> TrainingError:
        kept = f"checkpoint {self._saved_update} is kept" if self._saved_update else "there is no checkpoint yet"
        return TrainingError(f"{why}, so training stopped; {kept}; try a smaller algorithm.learning_rate")

    def _judge(self, row: dict[str, Any]) -> None:
        self.limit = self.limit or limit_reached(self._experiment.limits, self.counts, self._returns)
        ended: Status | None = None if self.limit is None else "done"
        if self._on_report is not None and self._on_report(row) is False:
            # Asked no more: the other updates of a fused dispatch are made, and reported, but the answer stands.
            ended, self._on_report = "stopped", None
        self.ended = self.ended or ended
        self.end_if_interrupted()


def window(episodes: int) -> int:
    """How many of the last episodes are reported, of so many.

    >>> window(3), window(96), window(10_000)
    (10, 19, 100)
    """
    return min(max(episodes // WINDOW_SHARE, SHORTEST_WINDOW), WINDOW)


def limit_reached(limits: LimitsConfig, counts: Counts, returns: Collection[float]) -> str | None:
    """The field of `limits` that ends a run with these counts and last returns, if one does."""
    if counts.env_steps >= limits.total_steps:
        return "total_steps"
    if limits.wall_s is not None and counts.wall_s >= limits.wall_s:
        return "wall_s"
    target = limits.target_return
    if target is not None and len(returns) == WINDOW and np.mean(list(returns)) >= target:
        return "target_return"
    return None


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None
