"""`podium train --seeds N`: a process for each, as many at once as cores allow."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import podium
from launch.commands import LIMIT_S, checkpoints, end, flags, start, tiny, wait_until
from podium.core.config import Experiment
from podium.launch import seeds
from podium.runs.metrics import read_metrics


def seed_runs(folder: Path, *more: str) -> tuple:
    args = ("train", "ppo", "podium:Catch-v0", "--seeds", "2", "--name", "many", *more)
    return start(*args, *flags(tiny(topology__dispatch=4)), cwd=folder), [
        folder / "runs" / f"many-seed{n}" for n in (0, 1)
    ]


@pytest.mark.skipif(os.cpu_count() == 1, reason="on one core, seeds are trained one after the other")
def test_two_seeds_run_at_once_and_ctrl_c_ends_both_with_checkpoints(tmp_path: Path) -> None:
    process, runs = seed_runs(tmp_path, "--total-steps", "1e9")
    try:
        both = lambda: all(len(read_metrics(run)) > 3 for run in runs)  # noqa: E731
        assert wait_until(both, process), (tmp_path / "said").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130, (tmp_path / "said").read_text()
    finally:
        if process.poll() is None:
            end(process)
    for seed, run in enumerate(runs):
        summary = podium.Run(run).summary
        assert (summary["seed"], summary["status"]) == (seed, "interrupted")
        assert checkpoints(run)[-1] == summary["updates"]
        with podium.runs.directory.RunDirectory(run).hold():
            pass  # no process holds it
    said = (tmp_path / "said").read_text()
    assert said.index("many-seed0: ") < said.index("many-seed1: ")


@pytest.mark.skipif(os.cpu_count() == 1, reason="on one core, seeds are trained one after the other")
def test_a_seed_that_fails_does_not_end_the_others_and_its_exit_code_is_the_commands(tmp_path: Path) -> None:
    (tmp_path / "runs" / "many-seed0").mkdir(parents=True)  # this name is taken
    process, runs = seed_runs(tmp_path, "--total-steps", "256")
    assert process.wait(LIMIT_S) == 2, (tmp_path / "said").read_text()
    assert "seed 0 | error: " in (tmp_path / "said").read_text()
    assert podium.Run(runs[1]).summary["status"] == "done"


def test_runs_of_several_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "count_cores", lambda: 8)
    experiment = Experiment()
    spread = replace(experiment, topology=replace(experiment.topology, actors=3))
    assert [seeds.seeds_at_once(each, 5) for each in (experiment, spread)] == [5, 2]
    assert seeds.seeds_at_once(experiment, 100) == 8


def test_names_of_runs_without_one_are_free(tmp_path: Path) -> None:
    (tmp_path / "ppo-X-v0-1-seed4").mkdir()
    assert seeds.free_name(tmp_path, "ppo-X-v0") == "ppo-X-v0-2"
