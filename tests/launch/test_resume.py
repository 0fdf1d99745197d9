"""A run that was killed goes on as if it had not been."""

import json
import shutil
from pathlib import Path

import pytest

import podium
from launch import commands
from launch.commands import checkpoints, digest, flags, timeless_rows, tiny, train_with_kills, truncate
from podium.cli.main import main
from podium.runs.metrics import read_metrics

FUSED = ["podium:Catch-v0", "--total-steps", "20000"]


@pytest.mark.parametrize(("mode", "kills"), [("fused", 2), ("inline", 1)])
def test_a_killed_run_ends_in_the_same_bits_as_one_never_killed(mode: str, kills: int, tmp_path: Path) -> None:
    workers = {} if mode == "fused" else {"topology__mode": mode, "topology__staleness": 0}
    settings = flags(tiny(topology__dispatch=4, checkpoint__every_updates=8, **workers))
    whole = commands.podium("train", "ppo", *FUSED, "--name", "whole", *settings, cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr

    run = train_with_kills("ppo", *FUSED, *settings, cwd=tmp_path, kills=kills)
    assert timeless_rows(run) == timeless_rows(tmp_path / "runs" / "whole")
    assert digest(run) == digest(tmp_path / "runs" / "whole")
    samples = podium.Run(run).summary["samples"]
    assert samples["unexplained"] == 0
    left = samples["undone"] + samples["lost"] + samples["in_flight"]
    assert samples["trained"] == samples["produced"] - left
    assert podium.Run(run).summary["notes"] == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with several checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    settings = tiny(checkpoint__every_updates=4, checkpoint__keep=9, topology__dispatch=4)
    return podium.train("ppo", "podium:Catch-v0", total_steps=1000, set=settings, root=root, progress=False).path


def copy(run: Path, to: Path) -> Path:
    target = to / run.name
    for file in run.rglob("*"):
        if file.is_file():
            (target / file.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(run)).write_bytes(file.read_bytes())
    return target


def test_a_truncated_checkpoint_is_skipped_for_the_one_before_and_that_is_said(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy(finished, tmp_path)
    *_, good, newest = checkpoints(run)
    truncate(run, newest)
    assert podium.load(run).update == good
    assert f"checkpoint {newest} cannot be read" in capsys.readouterr().err
    trained = podium.Run(run).summary["env_steps"]
    assert main(["resume", str(run), "--total-steps", "1200", "--quiet"]) == 0
    assert f"going on from checkpoint {good}" in capsys.readouterr().err
    summary = podium.Run(run).summary
    assert any(f"checkpoint {newest} cannot be read" in note for note in summary["notes"])
    at_checkpoint = next(row["step"] for row in read_metrics(run) if row["update"] == good)
    assert summary["samples"]["undone"] == trained - at_checkpoint > 0
    assert summary["samples"]["unexplained"] == 0
    assert [row["update"] for row in read_metrics(run)] == list(range(1, summary["updates"] + 1))


def test_a_run_none_of_whose_checkpoints_can_be_read_fails_with_one_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy(finished, tmp_path)
    for update in checkpoints(run):
        truncate(run, update)
    assert main(["resume", str(run), "--total-steps", "1200"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error:")
    assert "has no checkpoint to go on from" in line


def test_a_run_that_is_done_asks_for_more_steps(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(finished)]) == 2
    assert "--total-steps" in capsys.readouterr().err


def test_a_run_killed_after_its_last_checkpoint_is_closed_and_no_step_is_made(finished: Path, tmp_path: Path) -> None:
    run = copy(finished, tmp_path)
    before, rows = podium.Run(run).summary, timeless_rows(run)
    begun = {"status": "running", "env_steps": 0, "samples": dict.fromkeys(before["samples"], 0)}
    (run / "summary.json").write_text(json.dumps(before | begun))
    podium.resume(run, progress=False)
    summary = podium.Run(run).summary
    for key in ("status", "env_steps", "updates", "episode_return", "samples", "notes"):
        assert summary[key] == before[key]
    assert timeless_rows(run) == rows
    assert digest(run) == digest(finished)
    with pytest.raises(podium.ConfigError, match="give more with --total-steps"):
        podium.resume(run, progress=False)


@pytest.mark.parametrize("actors", [1, 2])
def test_a_run_killed_in_its_last_evaluation_is_evaluated(actors: int, tmp_path: Path) -> None:
    settings = tiny(topology__actors=actors, evaluation__episodes=2, topology__mode="inline")
    run = podium.train("ppo", "podium:Catch-v0", total_steps=200, set=settings, root=tmp_path, progress=False)
    before = run.summary
    assert before["eval_return"] is not None
    (run.path / "summary.json").write_text(json.dumps(before | {"eval_return": None}))
    podium.resume(run, progress=False)
    assert run.summary == before
    (run.path / "summary.json").write_text(json.dumps(before | {"status": "running", "eval_return": None}))
    podium.resume(run, progress=False)
    for key in ("status", "env_steps", "eval_return", "notes"):
        assert run.summary[key] == before[key]
    assert run.summary["samples"]["unexplained"] == 0


@pytest.mark.parametrize(("flag", "low", "high"), [("--target-return", "-1", "none"), ("--wall-s", "0.001", "1e6")])
def test_a_run_that_ended_by_another_limit_asks_for_that_one_and_goes_on_with_it(
    flag: str, low: str, high: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = "limits." + flag[2:].replace("-", "_")
    settings = tiny(topology__dispatch=4) | {field: float(low)}
    run = podium.train("ppo", "podium:Catch-v0", total_steps=10**9, set=settings, root=tmp_path, progress=False)
    ended = run.summary["env_steps"]
    assert main(["resume", str(run.path), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"run {run.name} has" in line
    assert flag in line
    steps = str(ended + 500)
    assert main(["resume", str(run.path), flag, high, "--total-steps", steps, "--quiet"]) == 0
    assert run.summary["env_steps"] >= ended + 500
    assert f"{field.partition('.')[2]} = {low}" not in (run.path / "experiment.toml").read_text()


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_ends_in_the_same_bits(
    finished: Path, tmp_path: Path
) -> None:
    run = copy(finished, tmp_path)
    shutil.rmtree(run / "checkpoints")
    summary, rows = podium.Run(run).summary, timeless_rows(run)
    summary["samples"] = dict.fromkeys(summary["samples"], 0)
    (run / "summary.json").write_text(json.dumps(summary | {"status": "running", "env_steps": 0}))
    podium.resume(run, progress=False)
    assert digest(run) == digest(finished)
    assert timeless_rows(run) == rows
    assert "there was no checkpoint yet, so the run began again" in (run / "log.txt").read_text()
    summary = podium.Run(run).summary
    assert summary["notes"] == ["there was no checkpoint yet, so the run began again from its start"]
    assert summary["samples"]["undone"] == summary["samples"]["trained"] == rows[-1]["step"]
    assert summary["samples"]["unexplained"] == 0


def test_a_run_from_another_one_that_has_no_checkpoint_says_how_to_start_it(finished: Path, tmp_path: Path) -> None:
    run = copy(finished, tmp_path)
    shutil.rmtree(run / "checkpoints")
    notes = {"notes": ["started from the training state of first"]}
    (run / "summary.json").write_text(json.dumps(podium.Run(run).summary | notes))
    with pytest.raises(podium.ConfigError, match=r"start it by `podium train --config .* --init-from first --root .*`"):
        podium.resume(run, progress=False)


def test_a_run_that_is_done_does_not_begin_again_where_its_checkpoints_are_gone(finished: Path, tmp_path: Path) -> None:
    run = copy(finished, tmp_path)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(podium.ConfigError, match=r"is done, and its checkpoints are gone: .* `podium train --config"):
        podium.resume(run, total_steps=5000, progress=False)
    assert timeless_rows(run) == timeless_rows(finished)


@pytest.mark.parametrize("status", ["done", "interrupted", "running"])
@pytest.mark.parametrize("limit", [{"total_steps": 500}, {"wall_s": 0.001}], ids=lambda limit: next(iter(limit)))
def test_an_end_that_is_behind_a_run_is_refused_and_changes_nothing(
    limit: dict, status: str, finished: Path, tmp_path: Path
) -> None:
    run = copy(finished, tmp_path)
    (run / "summary.json").write_text(json.dumps(podium.Run(run).summary | {"status": status}))
    flag = "--" + next(iter(limit)).replace("_", "-")
    more = {"total_steps": 5000} | limit
    with pytest.raises(podium.ConfigError, match=rf"run {run.name} has .* and its end is at .*: give more with {flag}"):
        podium.resume(run, **more, progress=False)
    for file in ("experiment.toml", "metrics.jsonl"):
        assert (run / file).read_bytes() == (finished / file).read_bytes()
    assert podium.Run(run).summary["status"] == status


def test_steps_undone_by_two_kills_without_a_checkpoint_between_are_both_counted(
    finished: Path, tmp_path: Path
) -> None:
    """What a kill leaves: a summary from the process's start, and rows beyond the last checkpoint."""
    run = copy(finished, tmp_path)
    summary = podium.Run(run).summary
    summary["samples"] |= {"produced": 700, "trained": 500, "undone": 150, "lost": 50, "in_flight": 0}
    (run / "summary.json").write_text(json.dumps(summary | {"status": "running", "env_steps": 500}))
    rows, newest = read_metrics(run), checkpoints(run)[-1]
    extra = rows[-1] | {"update": newest + 1, "step": rows[-1]["step"] + 60}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(extra) + "\n")
    podium.resume(run, total_steps=1100, progress=False)
    samples = podium.Run(run).summary["samples"]
    assert samples["undone"] == 150 + 60
    assert samples["lost"] == 50
    assert samples["unexplained"] == 0
