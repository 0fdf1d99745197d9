"""Curves over seeds: the mean and interval of known numbers, grouped by what tells runs apart."""

import json
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import ConfigError
from podium.runs.curves import combine, group_by_experiment, read_curve, smooth


def write_run(path: Path, returns: list[float | None], seed: int = 0, rate: float = 0.1, name: str = "ppo") -> Path:
    path.mkdir()
    (path / "experiment.toml").write_text(
        f'seed = {seed}\n[algorithm]\nname = "{name}"\nlearning_rate = {rate}\n[env]\nid = "CartPole-v1"\n'
    )
    rows = [{"update": i, "step": 100 * i, "episode_return": value} for i, value in enumerate(returns, 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_curve_leaves_out_reports_before_the_first_episode(tmp_path: Path) -> None:
    curve = read_curve(write_run(tmp_path / "a", [None, 2.0, 3.0], seed=4))
    assert (curve.steps.tolist(), curve.returns.tolist()) == ([200, 300], [2, 3])
    assert (curve.algorithm, curve.env, curve.seed) == ("ppo", "CartPole-v1", 4)


def test_a_run_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished episode"):
        read_curve(write_run(tmp_path / "a", [None]))


def test_evaluations_stand_at_the_step_of_the_version_that_was_played(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [1.0, 2.0, 3.0])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plays = {"evaluator-0/return": 5.0, "evaluator-0/stderr": 0.5, "evaluator-0/update": 1}
    rows[1] |= plays  # told a while after update 1, and once more: it is one play
    rows[2] |= plays
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_curve(run).evaluations.tolist() == [[100, 5.0, 0.5]]
    (run / "summary.json").write_text(
        '{"env_steps": 300, "eval_return": 9.0, "eval_std": 2.0, "eval_episodes": 4, "episode_return": {"mean": 3.0}}'
    )
    assert read_curve(run).evaluations.tolist() == [[100, 5.0, 0.5], [300, 9.0, 1.0]]


def test_smoothing_keeps_constants_and_averages_the_middle() -> None:
    np.testing.assert_allclose(smooth(np.full(200, 7.0)), 7.0)
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 6.0, 0.0]), window=3), [1.5, 3.0, 3.0, 3.0])
    np.testing.assert_allclose(smooth(np.array([5.0])), [5.0])


def test_mean_and_student_interval_over_three_seeds(tmp_path: Path) -> None:
    curves = [read_curve(write_run(tmp_path / str(y), [y, y], seed=int(y))) for y in (1.0, 2.0, 3.0)]
    band = combine(curves, points=5)
    np.testing.assert_allclose(band.steps, [100, 125, 150, 175, 200])
    np.testing.assert_allclose(band.mean, 2.0)
    np.testing.assert_allclose(band.high - band.mean, 4.303 / np.sqrt(3), rtol=1e-3)  # standard deviation 1
    np.testing.assert_allclose(band.mean - band.low, band.high - band.mean)


def test_runs_of_different_length_meet_where_all_are_defined(tmp_path: Path) -> None:
    band = combine([read_curve(write_run(tmp_path / "a", [1, 1, 1])), read_curve(write_run(tmp_path / "b", [None, 3]))])
    assert (band.steps[0], band.steps[-1]) == (200, 200)
    np.testing.assert_allclose(band.mean, 2.0)


def test_runs_that_differ_in_their_seed_are_one_group_named_by_the_difference(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"{rate}-{seed}", [1.0], seed, rate) for rate in (0.1, 0.2) for seed in range(3)]
    groups = group_by_experiment([read_curve(path) for path in paths])
    assert {label: len(group) for label, group in groups.items()} == {
        "learning_rate = 0.1": 3,
        "learning_rate = 0.2": 3,
    }


def test_other_algorithms_are_named(tmp_path: Path) -> None:
    curves = [read_curve(write_run(tmp_path / name, [1.0], name=name)) for name in ("ppo", "mine")]
    assert list(group_by_experiment(curves)) == ["ppo", "mine"]


def test_a_run_without_experiment_stands_for_itself(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, [1.0]) for name in ("a", "b")]
    for path in paths:
        (path / "experiment.toml").unlink()
    assert list(group_by_experiment([read_curve(path) for path in paths])) == ["a", "b"]


def test_across_algorithms_the_name_alone_is_the_label(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, [1.0], rate=rate, name=name) for name, rate in (("ppo", 0.1), ("dqn", 0.2))]
    paths.append(write_run(tmp_path / "fast", [1.0], rate=0.3, name="dqn"))
    assert list(group_by_experiment([read_curve(path) for path in paths[:2]])) == ["ppo", "dqn"]
    assert list(group_by_experiment([read_curve(path) for path in paths])) == [
        "ppo",
        "dqn, learning_rate = 0.2",
        "dqn, learning_rate = 0.3",
    ]
