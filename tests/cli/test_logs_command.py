"""Logs are listed, shown and followed until their run ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podium.cli.main import main
from podium.runs.directory import RunDirectory


def make_run(root: Path, **logs: str) -> RunDirectory:
    run = RunDirectory.create(root, "mine", "stem")
    run.experiment_toml.write_text("seed = 0\n")
    for worker, text in logs.items():
        run.logs.mkdir(exist_ok=True)
        (run.logs / f"{worker.replace('_', '-')}.log").write_text(text)
    return run


def follow(run: RunDirectory, *args: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "podium", "logs", "mine", *args, "-f", "--root", str(run.path.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_a_worker_the_logs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, actor_10="a\nstep 10\n", actor_2="x" * 2000, learner_0="")
    assert main(["logs", "mine", "--root", str(tmp_path)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["worker", "size", "last", "line"]
    assert [row.split() for row in rows] == [
        ["actor-2", "2.0", "kB", "x" * 80],
        ["actor-10", "10", "B", "step", "10"],
        ["learner-0", "0", "B"],
    ]


def test_of_a_run_in_one_process_its_own_log_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(tmp_path, "alone", "stem")
    run.experiment_toml.write_text("seed = 0\n")
    assert main(["logs", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "run alone has no logs yet\n"
    run.log.write_text("compiling\ntraining\ndone\n")
    for args in ([], ["-f"]):
        assert main(["logs", "-n", "2", *args, "--root", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "training\ndone\n"


def test_the_last_lines_of_a_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, actor_0="".join(f"{i}\n" for i in range(100)))
    for args, shown in (([], 20), (["-n", "3"], 3), (["--lines", "0"], 0), (["-n", "1e3"], 100)):
        assert main(["logs", "mine", "actor-0", *args, "--root", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "".join(f"{i}\n" for i in range(100 - shown, 100))


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ("actor0", "run mine has no log of 'actor0'; did you mean 'actor-0'?"),
        ("2", "run mine has no log of '2'; there are: actor-0, learner-0"),
    ],
)
def test_an_unknown_worker_is_told_what_there_is(
    worker: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, actor_0="", learner_0="")
    assert main(["logs", "mine", worker, "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_following_one_worker_ends_with_its_run_and_misses_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, actor_0="old\nolder\n", learner_0="not this\n")
    with run.hold():
        process = follow(run, "actor-0", "-n", "1")
        assert process.stdout is not None
        assert process.stdout.readline() == "older\n"
        with (run.logs / "actor-0.log").open("a") as log:
            log.write("new\nhalf")
            log.flush()
            assert process.stdout.readline() == "new\n"
            assert process.poll() is None
            log.write(" and whole\nlast, without its end")
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (
        "half and whole\nlast, without its end\n",
        "run mine has ended\n",
        0,
    )


def test_following_all_workers_takes_in_those_that_come_later(tmp_path: Path) -> None:
    run = make_run(tmp_path, actor_0="zero\n")
    with run.hold():
        process = follow(run)
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["actor-0", "zero"]
        (run.logs / "learner-0.log").write_text("from its\nbeginning\n")
        assert process.stdout.readline().split() == ["learner-0", "from", "its"]
        assert process.stdout.readline().split() == ["learner-0", "beginning"]
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0


def test_ctrl_c_is_how_one_leaves(tmp_path: Path) -> None:
    run = make_run(tmp_path, actor_0="zero\n")
    with run.hold():
        process = follow(run, "actor-0")
        assert process.stdout is not None
        assert process.stdout.readline() == "zero\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_a_run_that_has_ended_is_shown_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, actor_0="a\nb")
    assert main(["logs", "mine", "actor-0", "-f", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "a\nb\n"
