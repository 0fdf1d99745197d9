"""ES over processes: the same numbers however many there are, and a population that nobody's death stops."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from launch.commands import (
    LIMIT_S,
    checkpoints,
    digest,
    end,
    flags,
    podium,
    start,
    timeless_rows,
    wait_until,
)
from podium.orchestrator.status import read_status

# Gymnasium's, since a process that imports EnvPool takes half as long again to start.
TRAIN = ("train", "es", "gymnasium:CartPole-v1")
TINY: dict[str, Any] = {
    "env.num_envs": 6,
    "network.hidden": [8],
    "algorithm.population": 24,
    "algorithm.episode_limit": 60,
    "algorithm.sigma": 0.1,
    "algorithm.learning_rate": 0.05,
    "algorithm.noise_table": 100_000,
    "algorithm.normalize_observations": "true",
    "evaluation.episodes": 0,
}


def settings(**changes: Any) -> list[str]:
    return flags(TINY | {name.replace("__", "."): value for name, value in changes.items()})


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_at_staleness_0_one_process_and_three_end_in_the_same_bits(tmp_path: Path) -> None:
    ways = {"one": (1, "memory"), "three": (2, "shm")}  # a learner and two actors
    for name, (actors, transport) in ways.items():
        topology = {"topology__actors": actors, "topology__transport": transport}
        common = {"topology__slots": 2, "topology__staleness": 0}
        chosen = settings(**topology, **common)
        done = podium(*TRAIN, "--name", name, "--total-steps", "4000", *chosen, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    runs = [tmp_path / "runs" / name for name in ways]
    assert digest(runs[0]) == digest(runs[1])
    rows = [
        [{name: value for name, value in row.items() if "/" not in name} for row in timeless_rows(run)] for run in runs
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 4
    for run in runs:
        samples = summary(run)["samples"]
        assert (samples["stale"], samples["lost"], samples["unexplained"]) == (0, 0, 0)


def test_the_run_goes_on_when_an_actor_is_killed_and_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "kill"
    arguments = settings(topology__actors=2, topology__slots=2, checkpoint__every_updates=5)
    process = start(*TRAIN, "--name", "kill", "--total-steps", "30000", *arguments, cwd=tmp_path)
    try:
        assert wait_until(lambda: bool(playing(run)) and bool(checkpoints(run)), process), said(tmp_path)
        os.kill(playing(run)[0], signal.SIGKILL)
        assert process.wait(LIMIT_S) == 0, said(tmp_path)
    finally:
        if process.poll() is None:
            end(process)
    done = summary(run)
    assert done["status"] == "done"
    assert done["restarts"]["actor"] == 1
    assert done["samples"]["unexplained"] == 0
    resumed = podium("resume", "kill", "--total-steps", "33000", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert summary(run)["samples"]["unexplained"] == 0
    assert summary(run)["env_steps"] >= 33_000
    assert not list(Path("/dev/shm").glob("podium-kill-*"))


def playing(run: Path) -> list[int]:
    """Processes of actors that have got on."""
    status = read_status(run / "workers.json")
    workers = status.workers if status else ()
    return [w.pid for w in workers if w.role == "actor" and w.state == "running" and w.progress and w.pid]


def said(folder: Path) -> str:
    return (folder / "said").read_text()
