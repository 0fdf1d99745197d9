"""One Ctrl-C, or a SIGTERM, ends a run with a checkpoint, a summary, exit code 130, and no process left."""

import os
import signal
from pathlib import Path

import pytest

import podium
from launch.commands import LIMIT_S, checkpoints, end, flags, group_is_empty, start, tiny, wait_until
from podium.runs.metrics import read_metrics

ENDLESS = ["--total-steps", "1e9"]


@pytest.mark.parametrize(
    ("env", "settings", "signum"),
    [
        ("podium:Catch-v0", {"topology__dispatch": 4}, signal.SIGINT),
        ("CartPole-v1", {}, signal.SIGTERM),
        ("gymnasium:CartPole-v1", {"env__processes": 2}, signal.SIGINT),
        ("gymnasium:CartPole-v1", {"env__processes": 2}, signal.SIGTERM),
    ],
    ids=["fused-SIGINT", "inline-SIGTERM", "processes-SIGINT", "processes-SIGTERM"],
)
def test_one_signal_to_the_whole_group_ends_a_run_that_resumes(
    env: str, settings: dict, signum: int, tmp_path: Path
) -> None:
    process = start("train", "ppo", env, "--name", "run", *ENDLESS, *flags(tiny(**settings)), cwd=tmp_path)
    run = tmp_path / "runs" / "run"
    assert wait_until(lambda: len(read_metrics(run)) > 3, process), (tmp_path / "said").read_text()
    os.killpg(process.pid, signum)  # as a terminal does, or a service manager
    assert process.wait(60) == 130, (tmp_path / "said").read_text()
    assert group_is_empty(process)
    summary = podium.Run(run).summary
    assert summary["status"] == "interrupted"
    assert summary["samples"]["unexplained"] == 0
    assert checkpoints(run)[-1] == summary["updates"] == read_metrics(run)[-1]["update"]
    assert (run / "curve.png").stat().st_size > 0
    assert "`podium resume run` goes on\ninterrupted\n" in (tmp_path / "said").read_text()
    assert (run / "log.txt").read_text().endswith("`podium resume run` goes on\n")

    podium.resume(run, total_steps=summary["env_steps"] + 200, progress=False)
    resumed = podium.Run(run).summary
    assert resumed["status"] == "done"
    assert resumed["updates"] > summary["updates"]
    assert resumed["samples"]["lost"] == summary["samples"]["in_flight"]
    assert resumed["samples"]["undone"] == resumed["samples"]["unexplained"] == 0
    assert [row["update"] for row in read_metrics(run)] == list(range(1, resumed["updates"] + 1))


@pytest.mark.parametrize("env", ["podium:Catch-v0", "gymnasium:CartPole-v1"], ids=["fused", "inline"])
def test_a_signal_during_compilation_ends_the_run_too(env: str, tmp_path: Path) -> None:
    args = ["train", "ppo", env, "--name", "run", *ENDLESS, *flags(tiny(topology__dispatch=4))]
    process = start(*args, cwd=tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "empty"))
    try:
        assert wait_until(lambda: b"compiling" in (tmp_path / "said").read_bytes(), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130, (tmp_path / "said").read_text()
        assert group_is_empty(process)
        assert podium.Run(tmp_path / "runs" / "run").summary["status"] == "interrupted"
        assert b"Traceback" not in (tmp_path / "said").read_bytes()
    finally:
        if process.poll() is None:
            end(process)


def test_a_signal_before_the_workers_have_begun_ends_a_run_of_many_processes(tmp_path: Path) -> None:
    settings = tiny(topology__actors=2, topology__transport="shm")
    process = start("train", "ppo", "gymnasium:CartPole-v1", "--name", "run", *ENDLESS, *flags(settings), cwd=tmp_path)
    run = tmp_path / "runs" / "run"
    try:
        assert wait_until(lambda: (run / "workers.json").exists(), process), (tmp_path / "said").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 130, (tmp_path / "said").read_text()
    finally:
        if process.poll() is None:
            end(process)
    assert b"Traceback" not in (tmp_path / "said").read_bytes()
    summary = podium.Run(run).summary
    assert (summary["status"], summary["env_steps"], summary["episode_return"]["n"]) == ("interrupted", 0, 0)
    assert summary["samples"]["unexplained"] == 0
