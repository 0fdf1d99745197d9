"""What a user can get wrong is told in one line, with exit code 2, before anything is made or lost."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import podium
from launch import commands
from launch.commands import TINY, digest, flags, tiny
from podium.cli.main import main
from podium.core.extras import install_line

HIDE = "import sys; sys.modules[{!r}] = None  # as if it were not installed"


def refuse(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """The one line that a command line is refused with, perhaps after the one that says what is being prepared."""
    assert main([str(arg) for arg in args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if not line.startswith("preparing ")]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["ppo", "CartPol-v1"], ["env.id = 'CartPol-v1'", "did you mean 'CartPole-v1'"]),
        (["ppo", "gymnax:CartPol-v1"], ["'gymnax:CartPole-v1'"]),
        (["pppo", "CartPole-v1"], ["'pppo'", "did you mean 'ppo'"]),
        (["ppo", "no_such_module:make"], ["there is no module 'no_such_module'"]),
        (["ppo", "launch.faulty:mak"], ["has no 'mak'", "did you mean 'make'"]),
        (["ppo", "launch.faulty:not_a_function_of_environments"], ["must make a gymnasium.Env", "not int"]),
        (["ppo", "launch.faulty:make", "--set", "env.kwargs.action=tuple"], ["action space Tuple", "Discrete"]),
        (["ppo", "launch.faulty:make", "--set", "env.kwargs.action=text"], ["action space Text"]),
        (["ppo", "podium:Catch-v0", "--set", "algorithm.squash=true"], ["algorithm.squash = true", "finite bounds"]),
        (
            ["ppo", "launch.faulty:make", "--set", "env.kwargs.action=unbounded", "algorithm.squash=true"],
            ["algorithm.squash = true", "finite bounds"],
        ),
        (["ppo", "CartPole-v1", "--set", "topology.mode=fused"], ["topology.mode = 'fused'", "CartPole-v1"]),
        (
            ["dqn", "CartPole-v1", "--set", "algorithm.update_ratio=0.3"],
            ["algorithm.update_ratio = 0.3", "whole number"],
        ),
        (["ppo", "podium:Catch-v0", "--track", "wandb"], ["wandb is not installed", "pip install -e '.[wandb]'"]),
        (["ppo", "podium:Catch-v0", "--init-from", "nothing"], ["no runs in"]),
    ],
)
def test_a_wrong_name_or_an_impossible_choice_is_one_line(
    args: list[str],
    told: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    line = refuse(capsys, "train", *args, "--root", tmp_path / "runs")
    for words in told:
        assert words in line
    assert not (tmp_path / "runs").exists()


def test_the_command_itself_prints_one_line_and_exits_with_2(tmp_path: Path) -> None:
    refused = commands.podium("train", "ppo", "CartPol-v1", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: env.id = 'CartPol-v1'")


@pytest.mark.parametrize("library", ["envpool", "gymnax"])
def test_a_missing_library_is_named_with_its_pip_install(library: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(library))
    path = os.pathsep.join([str(tmp_path), str(commands.TESTS)])
    refused = commands.podium("train", "ppo", f"{library}:CartPole-v1", cwd=tmp_path, PYTHONPATH=path)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.endswith(f"{library} is not installed: {install_line(library)}")


def test_without_envpool_gymnasium_steps_the_same_id(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE.format("envpool"))
    path = os.pathsep.join([str(tmp_path), str(commands.TESTS)])
    shown = commands.podium("train", "ppo", "CartPole-v1", "--dry-run", cwd=tmp_path, PYTHONPATH=path)
    assert shown.returncode == 0, shown.stderr
    assert "Gymnasium steps CartPole-v1" in shown.stdout


def test_a_config_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "old.toml"
    config.write_text("format = 99\n")
    line = refuse(capsys, "train", "ppo", "CartPole-v1", "--config", config, "--root", tmp_path / "runs")
    assert "format = 99" in line
    assert "reads format 1" in line


@pytest.mark.parametrize("root", ["file/runs", "/proc/podium"], ids=["under-a-file", "not-writable"])
def test_a_place_that_cannot_be_written_is_refused(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    line = refuse(capsys, "train", "ppo", "podium:Catch-v0", "--root", tmp_path / root, *flags(TINY))
    assert str(tmp_path / root) in line
    assert "--root" in line


@pytest.fixture(scope="module")
def existing(tmp_path_factory: pytest.TempPathFactory) -> podium.Run:
    root = tmp_path_factory.mktemp("runs")
    return podium.train(
        "ppo", "podium:Catch-v0", name="mine", total_steps=200, set=TINY, root=root, progress=False, track=()
    )


def test_a_name_that_exists_is_refused_and_nothing_of_it_is_touched(
    existing: podium.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.stat().st_mtime_ns for path in existing.path.rglob("*")}
    args = ["train", "ppo", "podium:Catch-v0", "--name", "mine", "--root", existing.path.parent, *flags(TINY)]
    assert main([str(arg) for arg in args]) == 2
    assert capsys.readouterr().err.startswith("error: --name 'mine'"), "told before anything is prepared"
    wider = flags(tiny(network__hidden=[9]))
    assert "hidden" in refuse(capsys, *args[:6], existing.path.parent, *flags(tiny(network__hidden=[0])))
    mismatch = refuse(capsys, *args[:6], existing.path.parent, "--overwrite", "--init-from", "mine", *wider)
    assert "--init-from mine: the checkpoint's leaf" in mismatch
    assert "needs float32" in mismatch
    assert files == {path: path.stat().st_mtime_ns for path in existing.path.rglob("*")}


def test_overwrite_replaces_a_run_even_one_that_starts_from_itself(existing: podium.Run) -> None:
    root, before = existing.path.parent, digest(existing.path)
    args = ["train", "ppo", "podium:Catch-v0", "--name", "mine", "--root", str(root), "--total-steps", "400"]
    assert main([*args, "--overwrite", "--init-from", "mine", "--quiet", *flags(TINY)]) == 0
    assert digest(existing.path) != before
    assert "started from the training state of mine" in existing.summary["notes"]


def test_a_film_of_an_environment_that_draws_nothing_is_refused(
    existing: podium.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "draws no pictures" in refuse(capsys, "eval", "mine", "--root", existing.path.parent, "--video")


def test_a_film_that_cannot_be_written_is_refused_before_it_is_made(
    existing: podium.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = existing.path / "videos"
    shutil.rmtree(videos, ignore_errors=True)
    videos.touch()  # not even root makes files in a file
    line = refuse(capsys, "eval", "mine", "--root", existing.path.parent, "--video")
    videos.unlink()
    assert f"{str(videos)!r} cannot be written" in line
