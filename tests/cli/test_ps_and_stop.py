"""Runs in other terminals are listed and stopped; all of it is seen from outside, as a user does."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.commands import end, flags, start, tiny, wait_until
from podium.cli.main import main
from podium.orchestrator.status import RunStatus, WorkerStatus, write_status
from podium.runs import directory
from podium.runs.directory import RunDirectory
from podium.runs.metrics import read_metrics
from podium.runs.summary import read_summary

# Holds a run and does to a SIGTERM what it is told.
HOLD = """
import signal, sys
from pathlib import Path
from podium.runs.directory import RunDirectory
signal.signal(signal.SIGTERM, {"end": lambda *_: sys.exit(0), "ignore": signal.SIG_IGN}[sys.argv[2]])
with RunDirectory(Path(sys.argv[1])).hold():
    print("held", flush=True)
    sys.stdin.read()
"""


def make_run(root: Path, name: str) -> RunDirectory:
    run = RunDirectory.create(root, name, "stem")
    run.experiment_toml.write_text("seed = 0\n")
    return run


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[RunDirectory, subprocess.Popen]]:
    run = make_run(tmp_path, "mine")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path), getattr(request, "param", "end")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield run, process
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_the_holder_is_known_while_it_lives_and_no_longer(held: tuple[RunDirectory, subprocess.Popen]) -> None:
    run, process = held
    holder = run.holder()
    assert holder is not None
    assert (holder.pid, holder.is_here) == (process.pid, True)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert run.holder() is None
    with run.hold():
        holder = run.holder()
        assert holder is not None
        assert holder.pid == os.getpid()
    assert run.holder() is None


def test_asking_for_the_holder_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "mine")
    with run.hold():
        pass
    monkeypatch.setattr(directory, "LOOK_LIMIT_S", 60.0)
    asking = (run.path / ".lock").open()
    fcntl.flock(asking, fcntl.LOCK_SH)  # in the midst of `holder`, and slow
    leaves = threading.Timer(0.1, asking.close)
    leaves.start()
    with run.hold():
        assert run.holder() is not None
    leaves.join()


def test_ps_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "ended")
    assert main(["ps", "--root", str(tmp_path)]) == 0
    assert (
        capsys.readouterr().out
        == f"nothing is running in {tmp_path}; `podium runs --root {tmp_path}` lists what has ended\n"
    )


def test_ps_shows_a_run_before_its_first_report(
    held: tuple[RunDirectory, subprocess.Popen], capsys: pytest.CaptureFixture[str]
) -> None:
    run, process = held
    make_run(run.path.parent, "ended")
    run.metrics.write_text('{"step": 1')
    assert main(["ps", "--root", str(run.path.parent)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "pid", "mode", "steps", "steps/s", "return", "since"]
    assert row.split()[:6] == ["mine", str(process.pid), "-", "-", "-", "-"]


def test_ps_shows_every_worker_of_a_distributed_run(
    held: tuple[RunDirectory, subprocess.Popen], capsys: pytest.CaptureFixture[str]
) -> None:
    run, process = held
    now = time.time()
    metrics: dict[str, float | None] = {"steps_per_s": 1234.4, "wait_credit": 0.8, "wait_parameters": 0.1}
    workers = [
        WorkerStatus("learner", 0, 0, 71, "here", "running", now - 75, 0, 12, {"updates_per_s": None}),
        WorkerStatus("actor", 0, 3, 72, "here", "running", now - 3600, 3, 40, metrics),
        WorkerStatus("actor", 1, 1, None, "there", "restarting", now + 5, 1, 0, {}),
    ]
    write_status(run.workers_json, RunStatus(process.pid, "here", "running", "", workers))
    assert main(["ps", "--root", str(run.path.parent)]) == 0
    _, row, blank, title, header, learner, *actors = capsys.readouterr().out.splitlines()
    assert (row.split()[:2], blank, title) == (["mine", str(process.pid)], "", "mine is running")
    assert header.split() == ["worker", "pid", "state", "for", "restarts", "rate", "waits", "for"]
    words = learner.split()
    assert words[:3] + words[4:] == ["learner-0", "71", "running", "0", "-", "-"]
    assert words[3].startswith("1:")
    words = actors[0].split()
    assert words[:3] + words[4:] == ["actor-0", "72", "running", "3", "1,234", "steps/s", "credit", "80%"]
    assert words[3].startswith("1:00:")
    assert actors[1].split() == ["actor-1", "-", "on", "there", "restarting", "0:00", "1", "-", "-"]


def test_ps_does_not_show_the_workers_of_an_earlier_launcher(
    held: tuple[RunDirectory, subprocess.Popen], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = held
    worker = WorkerStatus("actor", 0, 0, 72, "here", "running", 0.0, 0, 0, {})
    write_status(run.workers_json, RunStatus(os.getpid(), "here", "running", "", [worker]))
    assert main(["ps", "--root", str(run.path.parent)]) == 0
    assert "actor-0" not in capsys.readouterr().out


def test_a_training_run_is_listed_and_stopped_with_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = flags(tiny(topology__dispatch=4))
    process = start("train", "ppo", "podium:Catch-v0", "--name", "run", "--total-steps", "1e9", *settings, cwd=tmp_path)
    root, run = tmp_path / "runs", tmp_path / "runs" / "run"
    try:
        assert wait_until(lambda: len(read_metrics(run)) > 3, process), (tmp_path / "said").read_text()
        assert main(["ps", "--root", str(root)]) == 0
        name, pid, mode, steps, *_ = capsys.readouterr().out.splitlines()[1].split()
        assert (name, pid, mode) == ("run", str(process.pid), "fused")
        assert 0 < int(steps.replace(",", "")) <= read_metrics(run)[-1]["step"]

        assert main(["stop", "run", "--root", str(root)]) == 0
        summary = read_summary(run) or {}
        assert summary["status"] == "interrupted"
        assert (run / "checkpoints" / str(summary["updates"])).is_dir()
        assert capsys.readouterr().out == (
            f"run run: interrupted after {summary['env_steps']:,} steps, checkpoint {summary['updates']};"
            f" `podium resume run --root {root}` goes on\n"
        )
        assert process.wait(60) == 130
        assert main(["ps", "--root", str(root)]) == 0
        assert capsys.readouterr().out.startswith("nothing is running")
        assert main(["stop", "run", "--root", str(root)]) == 2
        assert capsys.readouterr().err == f"error: run run is not running; `podium ps --root {root}` lists what is\n"
    finally:
        if process.poll() is None:
            end(process)


def test_a_run_that_ends_without_a_summary_is_told(
    held: tuple[RunDirectory, subprocess.Popen], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = held
    assert main(["stop", "mine", "--root", str(run.path.parent)]) == 1
    assert capsys.readouterr().err.startswith("error: run mine ended without a word")


@pytest.mark.parametrize("held", ["ignore"], indirect=True)
def test_stop_does_not_wait_for_ever(
    held: tuple[RunDirectory, subprocess.Popen], capsys: pytest.CaptureFixture[str]
) -> None:
    run, process = held
    assert main(["stop", "mine", "--root", str(run.path.parent), "--timeout", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: run mine has not ended 1 s after its SIGTERM: process {process.pid} may still")
    assert "--timeout 2" in said
    assert process.poll() is None


def test_a_run_of_another_host_is_not_stopped_from_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, "mine")
    with run.hold():
        # As another host that shares the disk writes it: here the number is some other process's.
        (run.path / ".lock").write_text(f"{os.getpid()} elsewhere\n")
        assert main(["stop", "mine", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"error: run mine is running in process {os.getpid()} on elsewhere: stop it there\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["stop"], "podium stop: which run? `podium ps` lists what is running"),
        (["stop", "x", "--timeout", "0"], "--timeout = 0: must be at least 1 second"),
        (["train", "ppo", "X", "--metrics-port", "70000"], "--metrics-port = 70000: must be from 0 to 65535; 0 takes"),
        (["resume", "--metrics-port", "http"], "--metrics-port = 'http': must be a whole number"),
    ],
)
def test_a_wrong_line_about_processes_is_one_line(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
