"""Results have the digits that fit their scale, and say what was greedy and what was training."""

import pytest

from podium.runs.recorder import window
from podium.runs.results import describe_result, format_return, format_score, greedy_score, how_to_go_on

SAC = {
    "episode_return": {"mean": -366.2, "std": 40.0, "n": 96},
    "eval_return": -149.3,
    "eval_std": 29.1,
    "eval_episodes": 10,
    "env_steps": 20_000,
    "wall_s": 98.24,
}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4254.4, "4,254"),
        (-366.2, "-366"),
        (99.96, "100.0"),
        (21.52, "21.5"),
        (1.0, "1.00"),
        (0.97, "0.97"),
        (-0.053, "-0.053"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_a_return_has_about_three_digits(value: float, shown: str) -> None:
    assert format_return(value) == shown


@pytest.mark.parametrize(
    ("mean", "stderr", "shown"),
    [
        (-149.3, 9.2, "-149 ± 9"),
        (4254.4, 31.4, "4,254 ± 31"),
        (0.97, 0.017, "0.97 ± 0.02"),
        (499.8, 0.2, "499.8 ± 0.2"),
        (500.0, 0.0, "500 ± 0"),
        (0.03, 0.8, "0.03 ± 0.80"),
        (0.0, 0.0, "0 ± 0"),
        (12.34, None, "12.3"),
    ],
)
def test_mean_and_standard_error_end_at_the_same_digit(mean: float, stderr: float | None, shown: str) -> None:
    assert format_score(mean, stderr) == shown


def test_the_last_line_has_the_greedy_return_first() -> None:
    line = "greedy -149 ± 9 over 10 episodes (training -366 over the last 96), 20,000 steps in 98.2 s"
    assert describe_result(SAC) == line


def test_the_last_line_names_the_limit_that_ended_the_run() -> None:
    assert describe_result(SAC | {"limit": "wall_s"}).endswith(", 20,000 steps in 98.2 s; ended by limits.wall_s")


def test_a_run_goes_on_past_the_limit_that_ended_it() -> None:
    flags = [how_to_go_on(SAC | {"limit": limit}) for limit in ("total_steps", "wall_s", "target_return", None)]
    assert flags == [" --total-steps 40000", " --wall-s 197", " --target-return none", ""]


def test_what_was_not_played_or_did_not_end_is_said() -> None:
    alone = {key: SAC[key] for key in ("episode_return", "env_steps", "wall_s")}
    assert describe_result(alone) == "training -366 over the last 96 episodes, 20,000 steps in 98.2 s"
    assert describe_result({"env_steps": 64}) == "no episode ended, 64 steps in 0.0 s"
    once = SAC | {"eval_std": None, "eval_episodes": 1, "episode_return": {"mean": None, "std": None, "n": 0}}
    assert describe_result(once) == "greedy -149 over 1 episode (no training episode ended), 20,000 steps in 98.2 s"


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert greedy_score({"eval_return": 3.0, "eval_std": 2.0, "eval_episodes": 16}) == (3.0, 0.5)
    assert greedy_score({"eval_return": 3.0}) == (3.0, None)
    assert greedy_score({"eval_return": None}) is None


def test_the_window_is_the_last_fifth_of_the_episodes_within_bounds() -> None:
    assert [window(n) for n in (0, 9, 50, 96, 250, 500, 10**6)] == [10, 10, 10, 19, 50, 100, 100]
