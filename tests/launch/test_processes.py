"""A learner and actors in processes of their own: the same numbers, and nothing lost in silence, whoever is killed."""

import json
import os
import random
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from launch.commands import LIMIT_S, checkpoints, digest, flags, podium, start, timeless_rows, tiny, wait_until
from podium.cli.main import main
from podium.core.settings import read_experiment
from podium.launch import training
from podium.launch.plan import make_plan
from podium.launch.restore import restore
from podium.orchestrator.status import WorkerStatus, read_status
from podium.runs.accounting import ActorAccount
from podium.runs.directory import RunDirectory

SHM = Path("/dev/shm")
GONE_S = 10.0
"""Who has lost its launcher leaves within 5 s; twice that here, where others use the cores, too."""


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    """A test that fails halfway must not leave its run behind: workers follow their launcher."""
    yield
    end_all()


def end_all() -> None:
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait(LIMIT_S)


def train(
    folder: Path,
    name: str,
    steps: int,
    xla_flags: str | None = None,
    options: Sequence[str] = (),
    **changes: Any,
) -> subprocess.Popen:
    """Gymnasium, since a process that imports EnvPool takes half as long again to start."""
    settings = flags(tiny(**({"topology__actors": 2, "topology__transport": "shm"} | changes)))
    args = ["train", "ppo", "gymnasium:CartPole-v1", "--name", name, "--total-steps", str(steps), *options, *settings]
    more = {} if xla_flags is None else {"XLA_FLAGS": xla_flags}
    STARTED.append(start(*args, cwd=folder, **more))
    return STARTED[-1]


def workers(run: Path) -> list[WorkerStatus]:
    """Those that run, as the launcher last wrote."""
    status = read_status(run / "workers.json")
    return [worker for worker in status.workers if worker.state == "running"] if status else []


def all_started(run: Path) -> list[int]:
    """Processes that have ever been started, from their logs."""
    pids = []
    for log in (run / "logs").glob("*.log"):
        lines = [line for line in log.read_text().splitlines() if line.startswith("--- ")]
        pids += [int(line.split(" pid ")[1].split()[0]) for line in lines]
    return pids


def living(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.append(pid)
    return found


def segments(run: str) -> list[Path]:
    return list(SHM.glob(f"podium-{run}-*"))


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def said(folder: Path) -> str:
    return (folder / "said").read_text()


WAYS = {
    "one": {"topology__actors": 1, "topology__transport": "memory"},
    "impala": {"options": ["--topology", "impala"], "topology__actors": 2, "topology__transport": "shm"},
    "tcp3": {"topology__actors": 3, "topology__transport": "tcp"},
    "seed": {"options": ["--topology", "seed"], "topology__actors": 2, "topology__transport": "shm"},
    "decoupled": {"options": ["--topology", "decoupled"], "topology__actors": 2, "topology__transport": "tcp"},
}


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One experiment at staleness 0, run in all these ways, and compiled as users compile: bits depend on it."""
    folder = tmp_path_factory.mktemp("synchronous")
    same = {"env__num_envs": 6, "topology__slots": 6, "topology__staleness": 0}
    try:
        for name, way in WAYS.items():
            process = train(folder, name, 960, xla_flags="", **same, **way)
            assert process.wait(LIMIT_S) == 0, said(folder)
    finally:
        end_all()
    return {name: folder / "runs" / name for name in WAYS}


def test_at_staleness_0_one_process_and_two_or_three_actor_processes_end_in_the_same_bits(
    synchronous: dict[str, Path],
) -> None:
    runs = [synchronous[name] for name in ("one", "impala", "tcp3")]
    assert len({digest(run) for run in runs}) == 1
    learned = [
        [{name: value for name, value in row.items() if "/" not in name} for row in timeless_rows(run)] for run in runs
    ]
    assert learned[0] == learned[1] == learned[2]
    assert len(learned[0]) >= 10
    for run in runs:
        samples = summary(run)["samples"]
        assert (samples["stale"], samples["lost"], samples["unexplained"]) == (0, 0, 0)
        assert summary(run)["staleness"] == {"mean": 0.0, "max": 0}


@pytest.mark.parametrize("architecture", ["seed", "decoupled"])
def test_served_at_staleness_0_learns_the_same_within_float_tolerance(
    architecture: str, synchronous: dict[str, Path]
) -> None:
    assert summary(synchronous[architecture])["samples"]["unexplained"] == 0
    leaves = []
    for name in ("one", architecture):
        directory = RunDirectory(synchronous[name])
        plan = make_plan(read_experiment(directory.experiment_toml))
        template = jax.eval_shape(lambda plan=plan: training.initial_state(plan))
        leaves.append(jax.tree.leaves(plan.algorithm.params(restore(directory, template).tree["train"])))
    for inline, served in zip(*leaves, strict=True):
        np.testing.assert_allclose(inline, served, rtol=1e-3, atol=1e-5)


def test_twenty_kills_of_all_roles_cost_only_what_the_summary_says(tmp_path: Path) -> None:
    learns_soon = {"algorithm__learning_rate": 2e-3, "algorithm__gamma": 0.98}
    workers_of_all_roles = {"topology__mode": "served", "topology__evaluators": 1}
    process = train(tmp_path, "kills", 30_000, **learns_soon, **workers_of_all_roles, checkpoint__every_s=1.0)
    run, dice, killed = tmp_path / "runs" / "kills", random.Random(0), []
    while len(killed) < 20 and process.poll() is None:
        time.sleep(dice.uniform(0.05, 0.5))
        # Five deaths of a worker without progress between them end a run, as they should.
        targets = [worker for worker in workers(run) if worker.progress]
        if targets:
            role = dice.choice(sorted({worker.role for worker in targets}))
            victim = dice.choice([worker for worker in targets if worker.role == role])
            if living([victim.pid or 0]):
                os.kill(victim.pid or 0, signal.SIGKILL)
                killed.append(victim.role)
    assert process.wait(LIMIT_S) == 0, said(tmp_path)
    assert len(killed) == 20
    assert set(killed) == {"actor", "evaluator", "inference", "learner"}
    done = summary(run)
    assert done["status"] == "done"
    assert done["env_steps"] >= 30_000
    assert done["episode_return"]["mean"] > 60  # a random policy has 20
    assert done["samples"]["unexplained"] == 0
    assert sum(done["samples"][name] for name in ("stale", "lost", "undone")) > 0
    assert sum(done["restarts"].values()) >= len(killed) - 3  # the last ones may have come at the very end
    assert living(all_started(run)) == []
    assert segments("kills") == []


def test_when_the_launcher_is_killed_the_learner_saves_all_leave_and_resume_goes_on(tmp_path: Path) -> None:
    process = train(tmp_path, "orphans", 100_000_000, checkpoint__every_s=3600.0)
    run = tmp_path / "runs" / "orphans"
    assert wait_until(lambda: len(timeless_rows(run)) > 5, process)
    started, killed_at = all_started(run), time.monotonic()
    process.kill()
    while living(started) and time.monotonic() < killed_at + GONE_S:
        time.sleep(0.02)
    assert living(started) == []
    process.wait(LIMIT_S)
    saved = checkpoints(run)
    assert saved
    resumed = podium("resume", "orphans", "--total-steps", str(summary(run)["env_steps"] + 2000), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = summary(run)
    assert after["status"] == "done"
    assert after["updates"] > saved[-1]
    assert after["samples"]["unexplained"] == 0
    assert segments("orphans") == []


def test_a_frozen_actor_is_replaced_and_ps_logs_and_stop_work_from_another_terminal(tmp_path: Path) -> None:
    filming = {"topology__evaluators": 1, "evaluation__episodes": 1, "evaluation__video": True}
    process = train(tmp_path, "live", 100_000_000, options=["--metrics-port", "0"], **filming)
    run = tmp_path / "runs" / "live"
    assert wait_until(lambda: len(workers(run)) == 4, process), said(tmp_path)
    victim = next(worker for worker in workers(run) if (worker.role, worker.index) == ("actor", 1))
    os.kill(victim.pid or 0, signal.SIGSTOP)
    assert wait_until(lambda: any(worker.restarts and worker.progress for worker in workers(run)), process)
    rows = len(timeless_rows(run))
    assert wait_until(lambda: len(timeless_rows(run)) > rows + 5, process)
    assert wait_until(lambda: any((run / "videos").glob("*.mp4")), process), "the evaluator films what it plays"

    served = re.search(r"metrics at (\S+)", said(tmp_path))
    assert served
    with urllib.request.urlopen(served[1], timeout=LIMIT_S) as answer:
        metrics = answer.read().decode()
    assert 'podium_worker_restarts{run="live",worker="actor-1",role="actor"} 1\n' in metrics
    assert re.search(r'podium_worker_samples_produced{run="live",worker="learner-0",role="learner"} [1-9]', metrics)
    shown = podium("ps", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("live", "learner-0", "actor-0", "actor-1"))
    assert re.search(r"steps: produced [\d,]+, trained [\d,]+, stale [\d,]+, lost [\d,]+, undone 0, ", shown.stdout)
    log = podium("logs", "live", "actor-1", cwd=tmp_path)
    assert "actor-1 incarnation 0" in log.stdout
    assert "actor-1 incarnation 1" in log.stdout
    stopped = podium("stop", "live", cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert process.wait(LIMIT_S) == 130
    assert summary(run)["status"] == "interrupted"
    assert summary(run)["restarts"]["actor"] >= 1
    assert summary(run)["samples"]["unexplained"] == 0
    assert checkpoints(run)
    assert living(all_started(run)) == []
    assert segments("live") == []


def test_actors_that_do_not_divide_the_environments_have_unequal_shares_and_every_step_is_accounted_for(
    tmp_path: Path,
) -> None:
    process = train(tmp_path, "three", 4000, env__num_envs=8, topology__actors=3)
    assert process.wait(LIMIT_S) == 0, said(tmp_path)
    assert "3 actors do not divide 8 environments: each has up to 3" in said(tmp_path)
    run = tmp_path / "runs" / "three"
    done, samples = summary(run), summary(run)["samples"]
    assert samples["unexplained"] == 0
    assert samples["produced"] == sum(samples[name] for name in ("trained", "stale", "lost", "undone", "in_flight"))
    assert done["staleness"]["max"] <= 1
    # An update is 16 steps of all 8 environments, less rows that reset and steps that came too late.
    assert 0.8 < done["env_steps"] / (done["updates"] * 16 * 8) <= 1
    accounts = [ActorAccount.open(run / "accounting" / f"actor-{index}.0") for index in range(3)]
    assert all(account.fragments >= done["updates"] for account in accounts), (
        "two or three of each update are each one's"
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"topology__actors": 3, "topology__staleness": 0},
            "topology.actors = 3: must divide env.num_envs = 4 at topology.staleness = 0, where all wait "
            "for the slowest; use topology.staleness=1 for unequal shares",
        ),
        ({"topology__actors": 5}, "topology.actors = 5: must be at most env.num_envs = 4"),
        ({"topology__slots": 3, "topology__actors": 1}, "topology.slots = 3: must divide env.num_envs = 4"),
        ({"topology__slots": 1}, "topology.actors = 2: must be at most topology.slots = 1"),
    ],
)
def test_a_topology_that_cannot_be_is_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny(**({"topology__actors": 2, "topology__transport": "shm"} | changes))
    args = ["train", "ppo", "CartPole-v1", "--root", str(tmp_path / "runs"), *flags(settings)]
    assert main(args) == 2
    assert capsys.readouterr().err.strip() == f"error: {line}"
    assert not (tmp_path / "runs").exists()
