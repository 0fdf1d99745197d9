"""A run is seen as it is: by its last report while it goes on, and as dead once its process is gone."""

import json
from pathlib import Path

import pytest

from podium.cli.main import main
from podium.runs.directory import RunDirectory
from podium.runs.overview import current_summary

BEGUN = {
    "status": "running",
    "env_steps": 0,
    "steps_per_s": None,
    "episode_return": {"mean": None, "std": None, "n": 0},
}


def make_run(root: Path, summary: dict | None = BEGUN) -> RunDirectory:
    run = RunDirectory.create(root, "mine", "stem")
    run.experiment_toml.write_text('seed = 3\n[algorithm]\nname = "ppo"\n[env]\nid = "CartPole-v1"\n')
    if summary is not None:
        run.summary.write_text(json.dumps(summary))
    rows = [{"update": n, "step": 64 * n, "steps_per_s": 512.5, "episode_return": 10.0 * n} for n in (1, 2)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"update": 3, "st')
    return run


def test_a_live_run_has_the_numbers_of_its_last_whole_report(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with run.hold():
        now = current_summary(run)
    assert (now["status"], now["env_steps"], now["steps_per_s"]) == ("running", 128, 512.5)
    assert now["episode_return"]["mean"] == 20.0


@pytest.mark.parametrize("summary", [BEGUN, None], ids=["running", "no summary"])
def test_a_run_that_nothing_holds_though_it_never_ended_has_died(summary: dict | None, tmp_path: Path) -> None:
    run = make_run(tmp_path, summary)
    assert not run.is_held()
    assert (current_summary(run)["status"], current_summary(run)["env_steps"]) == ("died", 128)


def test_a_run_that_has_ended_is_what_its_summary_says(tmp_path: Path) -> None:
    done = BEGUN | {"status": "done", "env_steps": 96}
    assert current_summary(make_run(tmp_path, done)) == done


def test_podium_runs_tells_the_living_from_the_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    with run.hold():
        main(["runs", "--root", str(tmp_path)])
    main(["runs", "--root", str(tmp_path)])
    _, alive, _, dead = (line.split() for line in capsys.readouterr().out.splitlines())
    assert alive == ["mine", "running", "ppo", "CartPole-v1", "3", "128", "-", "20.0", "512"]
    assert dead == ["mine", "died", *alive[2:]]
