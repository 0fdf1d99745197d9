"""Pictures are drawn of one run, of one report, of many runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from podium.core.errors import ConfigError
from podium.runs.curves import read_curve
from podium.runs.directory import find_runs
from podium.runs.plot import plot_run, plot_runs
from runs.test_curves import write_run


def is_drawn(path: Path) -> bool:
    picture = imread(path)  # float[H, W, 4]
    colours = np.unique((picture * 255).astype(np.uint8).view(np.uint32))
    return picture.shape == (720, 1200, 4) and len(colours) > 20


def test_a_run_gets_its_curve(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [None, *map(float, range(100))])
    (run / "summary.json").write_text('{"steps_per_s": 1234.5, "episode_return": {"mean": 99.0}}')
    assert plot_run(run) == run / "curve.png"
    assert is_drawn(run / "curve.png")


def test_greedy_evaluations_are_points_on_the_curve(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [float(i) for i in range(100)])
    without = imread(plot_run(run))
    (run / "summary.json").write_text('{"env_steps": 10000, "eval_return": 150.0, "eval_std": 9.0, "eval_episodes": 9}')
    orange = np.array([0xEA, 0x58, 0x0C]) / 255
    points = [
        np.isclose(picture[..., :3], orange, atol=0.02).all(-1).sum() for picture in (without, imread(plot_run(run)))
    ]
    assert points[0] == 0 < points[1]


def test_a_run_of_one_report_is_drawn_too(tmp_path: Path) -> None:
    assert is_drawn(plot_run(write_run(tmp_path / "run", [1.0])))


def test_many_runs_are_drawn_in_one_picture(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{rate}-{seed}", [seed + rate * i for i in range(30)], seed, rate)
        for rate, seeds in ((0.1, 3), (0.2, 2), (0.3, 1))
        for seed in range(seeds)
    ]
    assert is_drawn(plot_runs(runs, tmp_path / "out" / "all.png"))
    assert is_drawn(plot_runs(runs[:2], tmp_path / "labelled.png", labels=["mine", "mine"]))


def test_no_runs_and_labels_that_do_not_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        plot_runs([])
    with pytest.raises(ConfigError, match="2 for 1 runs"):
        plot_runs([write_run(tmp_path / "a", [1.0])], labels=["a", "b"])


@pytest.mark.parametrize("out", ["file/curves.png", "folder"])
def test_a_picture_that_cannot_be_written_is_one_line(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    run = write_run(tmp_path / "run", [1.0])
    with pytest.raises(ConfigError, match=rf"^'{tmp_path / out}' cannot be written: "):
        plot_runs([run], tmp_path / out)


def test_pictures_are_written_in_the_format_of_their_suffix(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 2.0])
    assert plot_runs([run], tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in plot_runs([run], tmp_path / "a.svg").read_bytes()
    with pytest.raises(ConfigError, match=r"must end in \.png, \.pdf or \.svg"):
        plot_runs([run], tmp_path / "a.jpg")


def test_another_metric_over_time_is_drawn_and_an_unknown_one_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 2.0])
    rows = [json.loads(line) | {"wall_s": 3.0 * i, "entropy": 0.5} for i, line in enumerate(_lines(run))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curve = read_curve(run, "entropy", "time")
    assert (curve.steps.tolist(), curve.returns.tolist()) == ([0.0, 3.0], [0.5, 0.5])
    assert is_drawn(plot_runs([run], tmp_path / "a.png", metric="entropy", x="time"))
    with pytest.raises(ConfigError, match=r"--metric entropie: .* did you mean 'entropy'"):
        plot_runs([run], metric="entropie")


def test_the_beginning_of_a_name_stands_for_all_its_seeds(tmp_path: Path) -> None:
    for name in ("many-seed0", "many-seed2", "many-seed10", "many-other", "one"):
        write_run(tmp_path / name, [1.0])
    assert [run.name for run in find_runs("many", tmp_path)] == ["many-seed0", "many-seed2", "many-seed10"]
    assert [run.name for run in find_runs("one", tmp_path)] == ["one"]
    assert [run.name for run in find_runs("many-o", tmp_path)] == ["many-other"]
    with pytest.raises(ConfigError, match="there is no run 'none'"):
        find_runs("none", tmp_path)


def _lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()
