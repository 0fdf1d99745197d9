"""What a recorder reports: a return of the last episodes, a rate that means something, the limit that was reached."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.core.config import Experiment
from podium.core.settings import resolve
from podium.runs import recorder
from podium.runs.checkpoint import Checkpoints
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.outcomes import Outcomes
from podium.runs.progress import Progress
from podium.runs.recorder import Counts, Recorder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the recorder sees."""
    now = [100.0]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    return now


def make(experiment: Experiment, folder: Path) -> Iterator[Recorder]:
    with MetricsLog(folder, track=()) as log, Checkpoints(folder / "checkpoints") as checkpoints:
        yield Recorder(experiment, log, Progress(1, enabled=False), checkpoints, Counts(), threading.Event())


def experiment(algorithm: str = "ppo", **limits: float | None) -> Experiment:
    changes = {f"limits.{name}": value for name, value in limits.items()}
    return resolve(algorithm, "CartPole-v1", preset=None, overrides=changes).experiment


def test_the_return_is_of_the_last_fifth_of_the_episodes(tmp_path: Path) -> None:
    for recording in make(experiment(), tmp_path):
        for n in range(100):
            recording.report(1, {}, [(float(n), 1)])
        shown = recording.episode_return()
    assert (shown.mean, shown.n) == (89.5, 20)
    assert read_metrics(tmp_path)[-1]["episode_return"] == 89.5


def test_with_a_target_the_return_is_of_the_hundred_episodes_that_it_is_compared_with(tmp_path: Path) -> None:
    for recording in make(experiment(target_return=49.5), tmp_path):
        for n in range(100):
            assert recording.ended is None
            recording.report(1, {}, [(float(n), 1)])
        assert (recording.episode_return().mean, recording.episode_return().n) == (49.5, 100)
        assert (recording.ended, recording.limit) == ("done", "target_return")


def test_metrics_of_episodes_are_the_means_of_those_that_have_them_since_the_last_report(tmp_path: Path) -> None:
    numbers = np.array([[1, np.nan, np.nan], [0, 8, np.inf], [0, np.nan, np.nan]], np.float32)
    for recording in make(experiment(), tmp_path):
        recording.outcomes = Outcomes(("is_success", "distance", "mass"))
        assert recording.outcomes.notes() == ()
        recording.report(1, {}, [], outcomes=numbers)
        recording.report(1, {}, [], outcomes=numbers[:0])
        recording.report(1, {}, [], outcomes=numbers[:1])
        assert recording.outcomes.notes() == ("env.metrics: no episode had 'mass' in its last info",)
    rows = [{name: value for name, value in row.items() if "env/" in name} for row in read_metrics(tmp_path)]
    assert rows == [{"env/is_success": pytest.approx(1 / 3), "env/distance": 8}, {}, {"env/is_success": 1}]


def test_the_rate_leaves_out_random_play_before_learning_starts(tmp_path: Path, clock: list[float]) -> None:
    for recording in make(experiment("sac"), tmp_path):  # learning_starts = 1,000
        recording.start(0.0)
        for seconds, steps in ((0.1, 1000), *[(0.5, 50)] * 6):
            clock[0] += seconds
            recording.measure_rate(steps)
            recording.report(steps, {}, [])
    rates = [row.get("steps_per_s") for row in read_metrics(tmp_path)]
    assert rates[:2] == [None, None]
    assert rates[2:] == [pytest.approx(100.0)] * 5


@pytest.mark.parametrize(("limits", "name"), [({"total_steps": 64}, "total_steps"), ({"wall_s": 5.0}, "wall_s")])
def test_the_limit_that_was_reached_is_known(limits: dict, name: str, tmp_path: Path, clock: list[float]) -> None:
    for recording in make(experiment(**limits), tmp_path):
        recording.start(0.0)
        recording.report(32, {}, [])
        assert recording.limit is None
        clock[0] += 6.0
        recording.report(32, {}, [])
        assert (recording.ended, recording.limit) == ("done", name)
