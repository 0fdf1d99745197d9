"""Whatever the algorithm, a run that goes on from a checkpoint ends in the bits of one that was never stopped.

Fused, and in one process with workers, where the environments can tell where they are; others begin new episodes, and
all else goes on from the checkpoint. The buffer of those that replay is in their checkpoints, and overwritten here.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import podium
from launch.commands import checkpoints, digest, timeless_rows
from podium.launch.one_process import OneProcess

SMALL: dict[str, Any] = {
    "env.num_envs": 4,
    "network.hidden": [8],
    "topology.devices": 1,
    "topology.dispatch": 2,
    "evaluation.episodes": 0,
}
FRAGMENTS = {"algorithm.fragment_length": 8}
REPLAY = FRAGMENTS | {"algorithm.batch_size": 16, "algorithm.buffer_size": 400, "algorithm.learning_starts": 100}
# Everything that a buffer can hold: priorities, sequences and the memory that they start from.
SEQUENCES = {"algorithm.burn_in": 2, "algorithm.n_step": 3, "algorithm.priority_exponent": 0.6}
SEQUENCES |= {"network.memory": "gru", "network.memory_size": 8, "algorithm.batch_size": 128}
INDIVIDUALS = {"algorithm.population": 8, "algorithm.episode_limit": 20}
STEPS = 640


CASES = {
    "ppo": ("podium:Catch-v0", FRAGMENTS | {"algorithm.minibatch_size": 16, "algorithm.normalize_rewards": True}),
    "a2c": ("podium:Catch-v0", FRAGMENTS),
    "impala": ("podium:Catch-v0", FRAGMENTS | {"network.memory": "lstm", "network.memory_size": 8}),
    "appo": ("podium:Catch-v0", FRAGMENTS | {"algorithm.minibatch_size": 16}),
    "dqn": ("podium:Memory-v0", REPLAY | SEQUENCES),
    "ddpg": ("gymnax:Pendulum-v1", REPLAY | {"algorithm.priority_exponent": 0.6}),
    "td3": ("gymnax:Pendulum-v1", REPLAY | {"algorithm.n_step": 3}),
    "sac": ("gymnax:Pendulum-v1", REPLAY | {"algorithm.update_ratio": 0.5}),
    "es": ("podium:Catch-v0", INDIVIDUALS),
}


def workers(algorithm: str) -> dict[str, Any]:
    """In one process, in turns; served where it can be: ES's individuals have parameters of their own."""
    mode = "inline" if algorithm in ("es", "ppo", "ddpg") else "served"
    how = {"topology.mode": mode, "topology.actors": 1, "topology.transport": "memory", "topology.staleness": 0}
    return how | {"topology.slots": 2}


@pytest.mark.parametrize("mode", ["fused", "workers"])
@pytest.mark.parametrize("algorithm", CASES)
def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_ended(algorithm: str, mode: str, tmp_path: Path) -> None:
    env, settings = CASES[algorithm]
    settings = SMALL | settings | (workers(algorithm) if mode == "workers" else {})
    settings |= {"checkpoint.every_updates": 6, "checkpoint.keep": 9}
    how: dict[str, Any] = {"preset": "none", "set": settings, "total_steps": STEPS, "root": tmp_path}
    whole = podium.train(algorithm, env, name="whole", progress=False, track=(), **how)
    half = podium.Run(shutil.copytree(whole.path, tmp_path / "half"))
    early, *later = checkpoints(half.path)
    for update in later:
        shutil.rmtree(half.path / "checkpoints" / str(update))
    podium.resume(half, progress=False)
    assert f"going on from checkpoint {early}," in (half.path / "log.txt").read_text()
    assert half.summary["status"] == "done"
    assert half.summary["notes"] == []
    assert half.summary["samples"]["undone"] > 0
    assert half.summary["samples"]["unexplained"] == 0
    assert timeless_rows(half.path) == timeless_rows(whole.path)
    assert digest(half.path) == digest(whole.path)


def test_a_checkpoint_without_the_environments_is_gone_on_from_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, settings = CASES["ppo"]
    settings = SMALL | settings | workers("ppo")
    with monkeypatch.context() as before:
        before.setattr(OneProcess, "snapshots", lambda self, updates: None)  # as Podium was before it kept them
        run = podium.train("ppo", env, preset="none", set=settings, total_steps=200, root=tmp_path, progress=False)
    podium.resume(run, total_steps=400, progress=False)
    (note,) = run.summary["notes"]
    assert note.endswith("the environments began new episodes")


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("dqn", "gymnasium:CartPole-v1", REPLAY | {"algorithm.priority_exponent": 0.6}),
        ("es", "gymnasium:CartPole-v1", INDIVIDUALS | {"env.wrappers": ["time_limit(20)"]}),
    ],
)
def test_where_environments_cannot_tell_where_they_are_all_else_follows_from_the_checkpoint(
    algorithm: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = SMALL | settings | workers(algorithm)
    run = podium.train(
        algorithm,
        env,
        name="run",
        preset="none",
        set=settings,
        total_steps=STEPS,
        root=tmp_path,
        on_report=lambda row: row["step"] < STEPS // 2,
        progress=False,
        track=(),
    )
    assert run.summary["status"] == "stopped"
    copy = podium.Run(shutil.copytree(run.path, tmp_path / "copy"))
    before = len(timeless_rows(run.path))
    for each_run in (run, copy):
        podium.resume(each_run, progress=False)
        assert each_run.summary["status"] == "done"
        assert each_run.summary["samples"]["unexplained"] == 0
        (note,) = each_run.summary["notes"]
        assert note.endswith("the environments began new episodes")
    rows = timeless_rows(run.path)
    assert rows == timeless_rows(copy.path)
    assert digest(run.path) == digest(copy.path)
    if "gradient_updates" in rows[-1]:
        assert rows[before]["gradient_updates"] > 0, "it does not fill its buffer anew"
