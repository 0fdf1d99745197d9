"""A run whose replay buffer is kept by processes of their own, which may be killed."""

import json
import os
import random
import signal
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import podium
from launch.commands import LIMIT_S, flags, start, wait_until
from podium.launch import memory
from podium.orchestrator.status import read_status
from podium.runs.metrics import read_metrics
from podium.workers.learner import ROUND

SETTINGS = {
    "env.num_envs": 4,
    "network.hidden": "[16]",
    # Whole sequences with the memory that they start from: all that rows can be.
    "network.memory": "gru",
    "network.memory_size": 8,
    "algorithm.burn_in": 4,
    "algorithm.fragment_length": 32,
    "algorithm.batch_size": 512,
    "algorithm.update_ratio": 0.125,
    "algorithm.learning_starts": 256,
    "algorithm.buffer_size": 4096,
    "algorithm.priority_exponent": 0.6,
    "topology.actors": 2,
    "topology.replay_workers": 2,
    "checkpoint.every_updates": 2,
    "evaluation.episodes": 2,
}


KILLED = ("replay", "learner", "replay", "actor", "replay")


def test_replay_workers_learner_and_actors_may_die_one_by_one_and_all_at_once_and_every_step_is_explained(
    tmp_path: Path,
) -> None:
    command = ["train", "dqn", "gymnasium:CartPole-v1", "--name", "run", "--total-steps", "7000"]
    process = start(*command, *flags(SETTINGS), cwd=tmp_path)
    run, dice = tmp_path / "runs" / "run", random.Random(0)
    try:
        for role in KILLED:
            done = last_step(run) + dice.randrange(128, 768)
            assert wait_until(lambda done=done: last_step(run) >= done, process), (tmp_path / "said").read_text()
            time.sleep(dice.uniform(0, 0.05))
            kill(run, role, dice)
        assert wait_until(lambda: restarts(run) == Counter(KILLED), process), (tmp_path / "said").read_text()
    finally:
        process.kill()  # first, so that nobody is started again
        for pid in pids(run):
            os.kill(pid, signal.SIGKILL)  # a learner that outlives its launcher writes a last checkpoint
        process.wait(LIMIT_S)
    again = start("resume", "run", cwd=tmp_path)
    try:
        assert again.wait(LIMIT_S) == 0, (tmp_path / "said").read_text()
    finally:
        again.kill()
        again.wait(LIMIT_S)
    summary = json.loads((run / "summary.json").read_text())
    samples, known = summary["samples"], summary["env_steps"]
    assert summary["status"] == "done"
    assert known >= 7_000
    assert samples["unexplained"] == 0
    assert samples["undone"] > 0, "what the replay workers had taken in, and the checkpoint did not know"
    assert any("the replay workers began empty" in note for note in summary["notes"])
    assert summary["staleness"]["max"] >= summary["staleness"]["mean"] > 0, "nobody waits for the newest version"
    assert summary["wall_s"] > summary["compile_s"]
    # Of a round's 128 steps, they may have taken in: those of two rounds drawn, of two ahead, and of a last fragment.
    assert known <= samples["trained"] <= known + 5 * 128


def test_a_run_whose_buffer_does_not_fit_beside_its_learner_is_streamed_from_a_replay_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a JAX environment, which would have been fused; each of its rounds is asked for in two parts."""
    settings = {
        "env.num_envs": 8,
        "network.hidden": (16,),
        "algorithm.fragment_length": 8,
        "algorithm.batch_size": 16,
        "algorithm.update_ratio": 2,
        "algorithm.learning_starts": 256,
        "algorithm.buffer_size": 4096,
        "evaluation.episodes": 0,
    }
    # Of the launcher: the workers read its choice, and have what the machine has.
    monkeypatch.setattr(memory, "host_memory", lambda: 2 * 4096 * 260)
    monkeypatch.setattr(memory, "PROCESS_BYTES", 0)
    run = podium.train("dqn", "podium:Catch-v0", total_steps=3_000, root=tmp_path, set=settings, progress=False)
    assert run.summary["status"] == "done"
    assert run.summary["mode"] == "inline"
    assert run.summary["samples"]["unexplained"] == 0
    stored = tomllib.loads((run.path / "experiment.toml").read_text())["topology"]
    assert (stored["mode"], stored["replay_workers"]) == ("inline", 1)
    assert "do not fit" in (run.path / "log.txt").read_text()
    assert {row["gradient_updates"] for row in read_metrics(run.path)} == {2 * ROUND}


def last_step(run: Path) -> int:
    """Of the last report."""
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    return rows[-1]["step"] if rows else 0


def kill(run: Path, role: str, dice: random.Random) -> None:
    os.kill(dice.choice(pids(run, role)), signal.SIGKILL)


def restarts(run: Path) -> Counter[str]:
    """By role, as the launcher last wrote."""
    status = read_status(run / "workers.json")
    counted: Counter[str] = Counter()
    for worker in status.workers if status else ():
        counted[worker.role] += worker.restarts
    return +counted


def pids(run: Path, *roles: str) -> list[int]:
    """Of the workers with one of these roles, or of all."""
    status = read_status(run / "workers.json")
    assert status is not None
    return [worker.pid for worker in status.workers if worker.pid and (worker.role in roles or not roles)]
