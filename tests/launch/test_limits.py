"""When runs end, and what the same experiment gives twice."""

import time
from pathlib import Path

import pytest

import podium
from launch.commands import TINY, digest, timeless_rows, tiny
from podium.cli.main import main
from podium.runs.metrics import read_metrics

SYNCHRONOUS = tiny(topology__staleness=0)
MODES = pytest.mark.parametrize("env", ["podium:Catch-v0", "gymnasium:CartPole-v1"], ids=["fused", "inline"])


def train(env: str, root: Path, total_steps: int = 10**9, **options: object) -> podium.Run:
    options = {"set": TINY} | options
    return podium.train("ppo", env, total_steps=total_steps, root=root, track=(), progress=False, **options)


@MODES
def test_total_steps_is_never_passed_by_more_than_one_update(env: str, tmp_path: Path) -> None:
    run = train(env, tmp_path, total_steps=1000)
    *_, before, last = read_metrics(run.path)
    assert before["step"] < 1000 <= last["step"] == run.summary["env_steps"]
    assert last["step"] - before["step"] <= 16 * 4
    assert run.summary["status"] == "done"
    assert run.summary["samples"]["trained"] == last["step"]
    assert run.summary["samples"]["unexplained"] == 0


@MODES
def test_a_run_ends_when_its_seconds_are_over(env: str, tmp_path: Path) -> None:
    began = time.monotonic()
    run = train(env, tmp_path, set=tiny(limits__wall_s=0.5, topology__dispatch=4))
    assert run.summary["status"] == "done"
    assert run.summary["wall_s"] >= 0.5
    assert time.monotonic() - began < 60


def test_a_run_ends_when_its_seconds_are_over_though_its_first_fragment_is_not_full(tmp_path: Path) -> None:
    settings = tiny(limits__wall_s=1.0, algorithm__fragment_length=100_000, algorithm__minibatch_size=100_000)
    run = train("gymnasium:CartPole-v1", tmp_path, set=settings)
    assert run.summary["status"] == "done"
    assert run.summary["updates"] == 0
    assert run.summary["wall_s"] >= 1.0
    assert run.summary["samples"]["unexplained"] == 0


@MODES
def test_a_run_ends_at_its_target_return_over_a_hundred_episodes(env: str, tmp_path: Path) -> None:
    run = train(env, tmp_path, set=tiny(limits__target_return=-1.0, topology__dispatch=4))
    rows = read_metrics(run.path)
    assert run.summary["status"] == "done"
    assert run.summary["episode_return"]["n"] == 100
    assert rows[-1]["episodes"] >= 100
    assert rows[-1]["update"] <= 4 * -(-next(row["update"] for row in rows if row["episodes"] >= 100) // 4)


@MODES
def test_on_report_sees_every_row_and_stops_the_run_by_returning_false(env: str, tmp_path: Path) -> None:
    seen = []

    def report(row: dict) -> bool:
        seen.append(row["update"])
        return len(seen) < 3

    run = train(env, tmp_path, on_report=report, set=tiny(topology__dispatch=1))
    assert seen == [row["update"] for row in read_metrics(run.path)] == [1, 2, 3]
    assert run.summary["status"] == "stopped"
    assert run.summary["samples"]["unexplained"] == 0
    assert podium.load(run).update == 3


def test_on_report_is_asked_no_more_once_it_has_stopped_a_fused_run(tmp_path: Path) -> None:
    """The updates of its dispatch are made: they are in the file, and in the checkpoint."""
    seen = []

    def report(row: dict) -> bool:
        seen.append(row["update"])
        return len(seen) != 3

    run = train("podium:Catch-v0", tmp_path, 600, on_report=report, set=tiny(topology__dispatch=16))
    rows = read_metrics(run.path)
    assert seen == [1, 2, 3]
    assert run.summary["status"] == "stopped"
    assert run.summary["updates"] == rows[-1]["update"] == podium.load(run).update > 3
    assert rows[-1]["step"] >= 600


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"], ids=["envpool", "gymnasium"])
def test_without_staleness_a_seed_decides_every_bit(env: str, tmp_path: Path) -> None:
    one, same = (train(env, tmp_path, 600, seed=1, set=SYNCHRONOUS) for _ in range(2))
    other = train(env, tmp_path, 600, seed=2, set=SYNCHRONOUS)
    assert digest(one.path) == digest(same.path) != digest(other.path)
    assert timeless_rows(one.path) == timeless_rows(same.path)
    assert one.summary["staleness"] == {"mean": 0.0, "max": 0}


def test_a_run_s_experiment_toml_repeats_it(tmp_path: Path) -> None:
    one = train("gymnasium:CartPole-v1", tmp_path, 600, seed=3, set=SYNCHRONOUS)
    config, root = str(one.path / "experiment.toml"), str(tmp_path)
    assert main(["train", "--config", config, "--name", "again", "--root", root, "--quiet"]) == 0
    assert (tmp_path / "again" / "experiment.toml").read_text() == (one.path / "experiment.toml").read_text()
    assert digest(tmp_path / "again") == digest(one.path)


@pytest.mark.parametrize("staleness", [1, 3])
def test_acting_is_never_further_behind_than_staleness(staleness: int, tmp_path: Path) -> None:
    run = train("CartPole-v1", tmp_path, 3000, set=tiny(topology__staleness=staleness))
    assert 0 <= run.summary["staleness"]["mean"] <= run.summary["staleness"]["max"] <= staleness
    assert run.summary["samples"]["unexplained"] == 0
