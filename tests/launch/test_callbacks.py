"""Callbacks are called at a run's start, reports, episodes, checkpoints and end, and can log and stop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from launch.commands import tiny
from podium.core.callback import Episode, Training
from podium.runs.metrics import read_metrics


class Watch(podium.Callback):
    """Notes what is called, logs a metric, and stops after some reports."""

    def __init__(self, most: int = 10**6) -> None:
        self.most, self.calls, self.reports, self.seen = most, [], 0, []

    def on_start(self, training: Training) -> None:
        self.calls.append("start")
        training.log({"started": 1})

    def on_report(self, training: Training, report: dict[str, Any]) -> None:
        self.calls.append("report")
        self.reports += 1
        if training.policy is not None:
            self.seen.append((training.policy.update, training.policy.predict(np.zeros(4, np.float32))[0]))
        training.log({"mine/reports": np.float32(self.reports)})
        if self.reports == self.most:
            training.stop()

    def on_checkpoint(self, training: Training, update: int) -> None:
        self.calls.append(f"checkpoint {update}")

    def on_end(self, training: Training, summary: dict[str, Any]) -> None:
        self.calls.append(f"end {summary['status']}")


class Episodes(podium.Callback):
    """Keeps all episodes."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_episode(self, training: Training, episode: Episode) -> None:
        self.episodes.append(episode)


def train(root: Path, env: str, *callbacks: podium.Callback, **changes: Any) -> podium.Run:
    return podium.train(
        "ppo", env, total_steps=64 * 4, set=tiny(**changes), root=root, track=(), progress=False, callbacks=callbacks
    )


@pytest.mark.parametrize("env", ["gymnasium:CartPole-v1", "gymnax:CartPole-v1"], ids=["inline", "fused"])
def test_callbacks_see_the_run_log_metrics_and_have_its_policy(env: str, tmp_path: Path) -> None:
    watch, episodes = Watch(), Episodes()
    run = train(tmp_path, env, watch, episodes, topology__dispatch=1, checkpoint__every_updates=2)
    rows = read_metrics(run.path)
    assert watch.calls[0] == "start"
    assert watch.calls[-1] == "end done"
    assert watch.calls.count("report") == len(rows) == run.summary["updates"] >= 4
    assert "checkpoint 2" in watch.calls
    assert [row["mine/reports"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row.get("started") for row in rows[:2]] == [1.0, None]
    assert [update for update, _ in watch.seen] == list(range(1, len(rows) + 1))
    assert {int(action) for _, action in watch.seen} <= {0, 1}
    assert len(episodes.episodes) == rows[-1]["episodes"] > 0
    last = [episode.episode_return for episode in episodes.episodes[-100:]]
    assert 0 < rows[-1]["episode_return"] <= max(last)
    assert all(episode.episode_return == episode.length for episode in episodes.episodes), "CartPole pays 1 a step"


def test_a_callback_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    watch = Watch(most=2)
    run = train(tmp_path, "gymnasium:CartPole-v1", watch)
    assert run.summary["status"] == "stopped"
    assert run.summary["updates"] == 2
    assert watch.calls[-2:] == ["checkpoint 2", "end stopped"]


def test_callbacks_work_in_a_run_of_many_processes(tmp_path: Path) -> None:
    watch = Watch()
    run = train(
        tmp_path, "gymnasium:CartPole-v1", watch, topology__transport="shm", checkpoint__every_updates=1, seed=1
    )
    assert watch.calls[0] == "start"
    assert watch.calls[-1] == "end done"
    assert watch.calls.count("report") == run.summary["updates"]
    assert any(call.startswith("checkpoint") for call in watch.calls)
    assert all(int(action) in (0, 1) for _, action in watch.seen)


def test_what_cannot_be_called_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(podium.ConfigError, match="on_episode is called in runs of one process"):
        train(tmp_path, "gymnasium:CartPole-v1", Episodes(), topology__transport="shm")
    with pytest.raises(podium.ConfigError, match=r"must be an object of a class that extends podium\.Callback"):
        train(tmp_path, "gymnasium:CartPole-v1", Watch)  # pyright: ignore[reportArgumentType]
    assert not list(tmp_path.iterdir())


class Clash(podium.Callback):
    """Logs a metric that is the run's own."""

    def on_report(self, training: Training, report: dict[str, Any]) -> None:
        training.log({"loss": 1.0})


def test_a_metric_of_the_run_itself_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(podium.ConfigError, match="'loss' is a metric of the run itself"):
        train(tmp_path, "gymnasium:CartPole-v1", Clash())
