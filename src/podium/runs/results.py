"""A run's result in words: returns with digits that fit their scale, and the last line of a run."""

import math
from collections.abc import Mapping
from typing import Any


def format_return(value: float) -> str:
    """A return with about three digits.

    >>> [format_return(x) for x in (2341.2, -366.49, 21.52, 0.97, 0.0317, 0.0)]
    ['2,341', '-366', '21.5', '0.97', '0.032', '0']
    """
    return f"{value:,.{_decimals(abs(value))}f}" if math.isfinite(value) and value else f"{value:g}"


def format_score(mean: float, stderr: float | None) -> str:
    """A mean and its standard error, to the same digit; the mean alone where there is no error to tell.

    >>> format_score(-149.3, 9.2), format_score(499.8, 0.2), format_score(0.03, 0.8), format_score(1.0, None)
    ('-149 ± 9', '499.8 ± 0.2', '0.03 ± 0.80', '1.00')
    """
    if stderr is None or not (math.isfinite(mean) and math.isfinite(stderr)):
        return format_return(mean)
    decimals = _decimals(max(abs(mean), stderr))
    if stderr and float(f"{stderr:.{decimals}f}") == 0:
        decimals = -math.floor(math.log10(stderr))
    return f"{mean:,.{decimals}f} ± {stderr:,.{decimals}f}"


def greedy_score(summary: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """Mean return of the greedy episodes at a run's end and its standard error; None if none were played.

    One episode has no standard error, and neither has a summary that does not tell how many there were.
    """
    mean, std, episodes = (summary.get(key) for key in ("eval_return", "eval_std", "eval_episodes"))
    if mean is None:
        return None
    return mean, std / math.sqrt(episodes) if std is not None and episodes and episodes > 1 else None


def describe_result(summary: Mapping[str, Any]) -> str:
    """What a run has learned, in one line.

    greedy -149 ± 9 over 10 episodes (training -366 over the last 19), 20,000 steps in 98.2 s; ended by limits.wall_s
    """
    training, greedy = summary.get("episode_return") or {}, greedy_score(summary)
    mean, n = training.get("mean"), training.get("n")
    if greedy is not None:
        played = "" if (count := summary.get("eval_episodes")) is None else f" over {_count(count)}"
        aside = "no training episode ended" if mean is None else f"training {format_return(mean)} over the last {n}"
        result = f"greedy {format_score(*greedy)}{played} ({aside})"
    elif mean is not None:
        result = f"training {format_return(mean)} over the last {_count(n)}"
    else:
        result = "no episode ended"
    why = f"; ended by limits.{limit}" if (limit := summary.get("limit")) else ""
    return f"{result}, {summary.get('env_steps') or 0:,} steps in {summary.get('wall_s') or 0:,.1f} s{why}"


def how_to_go_on(summary: Mapping[str, Any]) -> str:
    """The flags of `podium resume` that let a run go on: one that reached a limit is given another.

    >>> how_to_go_on({"limit": "total_steps", "env_steps": 20_000}), how_to_go_on({"limit": None})
    (' --total-steps 40000', '')
    """
    match summary.get("limit"):
        case "total_steps":
            return f" --total-steps {2 * summary['env_steps']}"
        case "wall_s":
            return f" --wall-s {math.ceil(2 * summary['wall_s'])}"
        case "target_return":
            return " --target-return none"
    return ""


def _count(episodes: int | None) -> str:
    return f"{episodes} episode" if episodes == 1 else f"{episodes} episodes"


def _decimals(size: float) -> int:
    """Digits after the point for a number of this size: none from 100 on, and two that say something below 0.1."""
    if size >= 100 or size == 0:
        return 0
    if size >= 10:
        return 1
    return 2 if size >= 0.1 else 1 - math.floor(math.log10(size))
