"""Numbers of info at an episode's end are in metrics.jsonl as env/NAME: the mean over the episodes of a report."""

from pathlib import Path
from typing import Any

import pytest

import podium
from launch.commands import tiny
from podium.runs.metrics import read_metrics

ENV = "envs.counting:make_succeeding"


class Rows(podium.Callback):
    """Keeps all reports."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_report(self, training: Any, report: dict[str, Any]) -> None:
        self.rows.append(report)


def train(root: Path, callback: podium.Callback, algorithm: str = "ppo", **changes: Any) -> podium.Run:
    settings = tiny(**changes)
    return podium.train(
        algorithm, ENV, total_steps=48 * 3, set=settings, root=root, track=(), progress=False, callbacks=[callback]
    )


@pytest.mark.parametrize(
    "topology",
    [{}, {"env__processes": 2}, {"topology__actors": 2, "topology__transport": "shm"}],
    ids=["in one process", "environments in processes", "two actor processes"],
)
def test_a_known_success_rate_is_reported(topology: dict[str, Any], tmp_path: Path) -> None:
    """A fragment has 16 steps: four episodes of three and their resets, of which the fourth is a success."""
    kept = Rows()
    run = train(tmp_path, kept, env__metrics=["is_success", "distance", "missing"], **topology)
    rows = read_metrics(run.path)
    assert len(rows) == 3
    assert [row["env/is_success"] for row in rows] == [0.25] * 3
    assert [row["env/distance"] for row in rows] == [7.0] * 3
    assert [row["env/is_success"] for row in kept.rows] == [0.25] * 3
    assert not any("env/missing" in row for row in rows)
    assert "env.metrics: no episode had 'missing' in its last info" in run.summary["notes"]


def test_success_is_looked_for_unless_no_metrics_are_wanted(tmp_path: Path) -> None:
    assert "env/is_success" in read_metrics(train(tmp_path, Rows()).path)[-1]
    assert not [name for name in read_metrics(train(tmp_path, Rows(), env__metrics=[]).path)[-1] if "env/" in name]


def test_tensorboard_has_it(tmp_path: Path) -> None:
    run = podium.train("ppo", ENV, total_steps=48, set=tiny(), root=tmp_path, track=["tensorboard"], progress=False)
    events = b"".join(path.read_bytes() for path in (run.path / "tensorboard").iterdir())
    assert b"env/is_success" in events


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    message = r"(?s)environment 0 .*info\['is_success'\] is 'yes', must be a number"
    with pytest.raises(podium.PodiumError, match=message):
        train(tmp_path, Rows(), env__kwargs={"success": "yes"})


@pytest.mark.parametrize(
    ("algorithm", "env", "message"),
    [
        ("ppo", "podium:Catch-v0", r"a JAX environment \(Catch-v0\) has no 'reached'; it has none"),
        ("ppo", "envpool:HalfCheetah-v5", r"EnvPool's HalfCheetah-v5 has no 'reached'; it has reward_ctrl, reward_run"),
        ("es", ENV, "an individual of es has no 'reached'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(algorithm: str, env: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(podium.ConfigError, match=message):
        podium.train(algorithm, env, set={"env.metrics": ["reached"]}, root=tmp_path, progress=False)
