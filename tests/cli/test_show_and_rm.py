"""A run is shown with what tells it from the defaults, and removed when its user says so."""

import json
from pathlib import Path

import pytest

from podium.cli.main import main
from podium.core import toml
from podium.core.settings import resolve
from podium.runs.directory import RunDirectory


def make_run(root: Path, name: str = "mine") -> RunDirectory:
    run = RunDirectory.create(root, name, "stem")
    changes = {"algorithm.gamma": 0.9, "network.hidden": [8]}
    run.experiment_toml.write_text(toml.dump(resolve("ppo", "Acrobot-v1", preset=None, overrides=changes).experiment))
    samples = {"produced": 2048, "trained": 2048, "unexplained": 0}
    run.summary.write_text(
        json.dumps({"status": "done", "env_steps": 2048, "wall_s": 1.5, "eval_return": -80.0, "samples": samples})
    )
    return run


def test_show_has_status_result_accounting_what_differs_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    assert main(["show", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        f"run {run.path}: done",
        "result: greedy -80.0 (no training episode ended), 2,048 steps in 1.5 s",
        "steps: produced 2,048, trained 2,048, unexplained 0",
    ]
    begin, end = said.index("settings that differ from the defaults:") + 2, said.index("files:") - 1
    settings = [line.split()[0] for line in said[begin:end]]
    assert sorted(settings) == ["algorithm.gamma", "env.id", "network.hidden"]
    assert [line.split()[0] for line in said[end + 3 :]] == [str(run.experiment_toml), str(run.summary)]


def test_rm_removes_what_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path, name) for name in ("a", "b", "c")]
    assert main(["rm", "a", "c", "--yes", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"removed {runs[0].path}\nremoved {runs[2].path}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(("answer", "left"), [("y", []), ("", ["mine"]), ("no", ["mine"])])
def test_rm_asks(answer: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert main(["rm", "mine", "--root", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == left


def test_rm_refuses_a_live_run_no_run_and_to_ask_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = make_run(tmp_path), make_run(tmp_path, "other")
    with run.hold():
        assert main(["rm", "other", "mine", "--yes", "--root", str(tmp_path)]) == 2
    assert f"run mine is running: `podium stop mine --root {tmp_path}` first" in capsys.readouterr().err
    assert main(["rm", "--root", str(tmp_path)]) == 2
    assert main(["rm", "mine", "--root", str(tmp_path)]) == 2
    assert "--yes removes without asking" in capsys.readouterr().err
    assert run.is_run
    assert other.is_run
