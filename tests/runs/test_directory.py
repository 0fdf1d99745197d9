"""Run directories are named without clashes, never lost by accident, and found again."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podium.core.errors import ConfigError
from podium.runs.directory import RunDirectory, find_run, list_runs, root_flag

STEM = "ppo-CartPole-v1"


def start(root: Path, name: str | None = None, at: float | None = None) -> RunDirectory:
    run = RunDirectory.create(root, name, STEM)
    run.experiment_toml.write_text("seed = 0\n")
    if at is not None:
        os.utime(run.experiment_toml, (at, at))
    return run


def test_default_names_count_up_from_the_highest(tmp_path: Path) -> None:
    names = [RunDirectory.create(tmp_path / "runs", None, STEM).name for _ in range(2)]
    assert names == ["ppo-CartPole-v1-0001", "ppo-CartPole-v1-0002"]
    (tmp_path / "runs" / "ppo-CartPole-v1-0041").mkdir()
    (tmp_path / "runs" / "ppo-CartPole-v1-old").mkdir()
    assert RunDirectory.create(tmp_path / "runs", None, STEM).name == "ppo-CartPole-v1-0042"


def test_a_default_name_is_one_directory_whatever_the_environment_is_called(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, None, "ppo-ALE/Pong-v5").name == "ppo-ALE-Pong-v5-0001"
    assert RunDirectory.create(tmp_path, None, "my_module:algorithm-gymnax:Catch").name == (
        "my_module-algorithm-gymnax-Catch-0001"
    )


def test_starting_many_runs_at_once_gives_each_its_own_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: RunDirectory.create(tmp_path, None, STEM), range(40)))
    assert len({run.path for run in runs}) == 40


def test_a_name_that_exists_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    run = start(tmp_path, "mine")
    with pytest.raises(ConfigError, match=r"'mine'.*exists.*another name.*--overwrite") as error:
        RunDirectory.create(tmp_path, "mine", STEM)
    assert "\n" not in str(error.value)
    assert run.experiment_toml.exists()


def test_overwrite_replaces_a_run_and_one_that_was_killed_at_its_start(tmp_path: Path) -> None:
    run = start(tmp_path, "mine")
    run.checkpoints.mkdir()
    assert list(RunDirectory.create(tmp_path, "mine", STEM, overwrite=True).path.iterdir()) == []
    run.logs.mkdir()
    assert list(RunDirectory.create(tmp_path, "mine", STEM, overwrite=True).path.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_overwrite_keeps_what_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "link").symlink_to(start(tmp_path, "mine").path)
    for name in ("thesis", "link"):
        with pytest.raises(ConfigError, match="not a run directory"):
            RunDirectory.create(tmp_path, name, STEM, overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").exists()
    assert (tmp_path / "mine" / "experiment.toml").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", ".hidden", "-x", "a b", "latest", "a" * 300])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        RunDirectory.create(tmp_path, name, STEM)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    roots = [tmp_path / "file" / "runs"]  # fails for everybody
    if os.geteuid() != 0:
        (tmp_path / "read-only").mkdir(mode=0o555)
        roots.append(tmp_path / "read-only")
    for root in roots:
        with pytest.raises(ConfigError, match="cannot make a run directory") as error:
            RunDirectory.create(root, None, STEM)
        assert "\n" not in str(error.value)


def test_a_run_directory_that_cannot_be_written_is_found_out_before_resuming(tmp_path: Path) -> None:
    start(tmp_path, "mine").require_writable()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        RunDirectory(tmp_path / "file").require_writable()


def test_latest_is_the_run_that_started_last(tmp_path: Path) -> None:
    start(tmp_path, "b", at=200)
    start(tmp_path, "a", at=300)
    start(tmp_path, "c", at=100)
    assert [run.name for run in list_runs(tmp_path)] == ["c", "b", "a"]
    assert find_run("latest", tmp_path).name == "a"


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(tmp_path / "runs", "mine")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "runs/mine", "runs/mine/", str(run.path), run.path):
        assert find_run(name, Path("runs")).path.resolve() == run.path.resolve()


def test_an_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    start(tmp_path, "ppo-CartPole-v1-0001")
    with pytest.raises(ConfigError, match=r"no run 'ppo-CartPol-v1-0001'.*did you mean 'ppo-CartPole-v1-0001'"):
        find_run("ppo-CartPol-v1-0001", tmp_path)
    with pytest.raises(ConfigError, match="podium runs --root"):
        find_run("zzz", tmp_path)


def test_no_runs_at_all_says_how_to_start_one(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="podium train"):
            find_run("latest", root)
        assert list_runs(root) == []


def test_a_directory_without_experiment_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"not a run.*experiment\.toml"):
        find_run(tmp_path / "other", tmp_path)


def test_looking_at_runs_imports_neither_jax_nor_matplotlib() -> None:
    code = (
        "import sys, podium.runs.directory, podium.runs.summary, podium.runs.metrics, podium.runs.plot, "
        "podium.runs.progress, podium.runs.video\n"
        "assert not {'jax', 'matplotlib', 'tensorboardX', 'rich', 'orbax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_run_that_another_process_writes_is_neither_resumed_nor_overwritten(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "stem")
    run.experiment_toml.write_text("")
    with run.hold():
        with pytest.raises(ConfigError, match=rf"run mine is still running, in process {os.getpid()}"), run.hold():
            pass
        with pytest.raises(ConfigError, match="run mine is still running"):
            RunDirectory.create(tmp_path, "mine", "stem", overwrite=True)
    with RunDirectory.create(tmp_path, "mine", "stem", overwrite=True).hold():
        pass


def test_who_writes_a_run_waits_for_the_one_before_and_not_for_ever(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "stem")
    writes, leaves = threading.Event(), threading.Event()

    def write() -> None:
        with run.write_alone():
            writes.set()
            leaves.wait(60)

    before = threading.Thread(target=write)
    before.start()
    assert writes.wait(60)
    with pytest.raises(ConfigError, match=r"run mine: its learner of before still runs"), run.write_alone(limit_s=0):
        pass
    leaves.set()
    with run.write_alone():
        before.join()


def test_a_hint_names_the_run_and_its_root_unless_that_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunDirectory(Path("runs/mine")).argument == RunDirectory(tmp_path / "runs" / "mine").argument == "mine"
    assert RunDirectory(Path("my runs/mine")).argument == "mine --root 'my runs'"
    assert root_flag(Path("runs")) == ""
    assert root_flag(tmp_path) == f" --root {tmp_path}"
