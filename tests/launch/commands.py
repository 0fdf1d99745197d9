"""Runs of the `podium` command in processes of their own, as users start them; and what is left of a run."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podium.core.settings import read_experiment
from podium.launch.plan import make_plan
from podium.launch.recording import checkpoint_template
from podium.launch.restore import restore
from podium.runs.directory import RunDirectory
from podium.runs.leaves import params_digest
from podium.runs.metrics import read_metrics

LIMIT_S = 180.0
TESTS = Path(__file__).parents[1]
CLOCK = ("wall_s", "steps_per_s")
"""Columns of metrics.jsonl that no two runs share."""

TINY: dict[str, Any] = {
    "env.num_envs": 4,
    "network.hidden": [8],
    "algorithm.fragment_length": 16,
    "algorithm.minibatch_size": 32,
    "algorithm.num_epochs": 2,
    "topology.devices": 1,
    "topology.actors": 1,  # not measured, so that a busy machine does not move a test to other processes
    "evaluation.episodes": 0,
}
"""An experiment whose update takes a millisecond, and compiles soon."""


def tiny(**changes: Any) -> dict[str, Any]:
    """TINY with other settings; two underscores stand for a dot: `tiny(topology__staleness=0)`."""
    return TINY | {name.replace("__", "."): value for name, value in changes.items()}


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them; no preset, so that they are all there is."""
    return ["--preset", "none", "--set", *(f"{name}={value}" for name, value in settings.items())]


def quick_flags() -> str:
    """XLA_FLAGS of these tests, which compile quickly, but with one device, as on a user's machine."""
    given = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(flag for flag in given if not flag.startswith("--xla_force_host_platform_device_count"))


def environment(**more: str) -> dict[str, str]:
    """Programs that compile quickly, and the modules of these tests importable; `XLA_FLAGS=""` compiles as users do."""
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "XLA_FLAGS": quick_flags(), "PYTHONPATH": paths} | more


def start(*args: str | Path, cwd: Path, **more: str) -> subprocess.Popen:
    """`python -m podium ARGS` in a process group of its own; what it says goes to cwd/said."""
    with (cwd / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "podium", *map(str, args)],
            cwd=cwd,
            env=environment(**more),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def podium(*args: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess:
    """The same, waited for; `returncode`, `stdout` and `stderr` tell how it went."""
    command = [sys.executable, "-m", "podium", *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=LIMIT_S)


def wait_until(holds: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Look fifty times a second; False if the process ended first."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            end(process)
            raise TimeoutError(f"waited {LIMIT_S:.0f} s for {holds}")
        time.sleep(0.02)
    return True


def kill_at_random(process: subprocess.Popen, within_s: float) -> bool:
    """SIGKILL to the whole group; False if it had ended by itself."""
    time.sleep(random.uniform(0, within_s))
    if process.poll() is not None:
        return False
    end(process)
    return True


def train_with_kills(*args: str | Path, cwd: Path, kills: int) -> Path:
    """`podium train ARGS --name killed`, killed after so many new checkpoints and resumed each time, to its end."""
    run, killed = cwd / "runs" / "killed", 0
    process = start("train", *args, "--name", "killed", cwd=cwd)
    for _ in range(kills):
        before = checkpoints(run)
        if wait_until(lambda before=before: checkpoints(run) > before, process):
            killed += kill_at_random(process, within_s=0.3)
        if process.returncode == 0:
            break
        process = start("resume", "killed", cwd=cwd)
    assert process.wait(LIMIT_S) == 0, (cwd / "said").read_text()
    assert killed >= 1
    return run


def end(process: subprocess.Popen) -> None:
    """Kill a process's group and wait for it."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)


def group_is_empty(process: subprocess.Popen) -> bool:
    """Whether nothing of the process's group is left, a few seconds after it ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    end(process)
    return False


def checkpoints(run: Path) -> list[int]:
    """Updates that have a checkpoint."""
    folder = run / "checkpoints"
    return sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdecimal())


def truncate(run: Path, update: int) -> None:
    """Cut the checkpoint's largest file in half, as a full disk or a crashed machine would."""
    largest = max((run / "checkpoints" / str(update)).rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def digest(run: Path) -> str:
    """Of everything in the newest checkpoint: parameters, optimiser, and environments where they have a state."""
    directory = RunDirectory(run)
    plan = make_plan(read_experiment(directory.experiment_toml))
    return params_digest(restore(directory, checkpoint_template(plan)).tree)


def timeless_rows(run: Path) -> list[dict[str, Any]]:
    """Every row of metrics.jsonl without its clock."""
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in read_metrics(run)]
