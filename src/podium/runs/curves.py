"""Learning curves as numbers: read from runs, smoothed, grouped over seeds, with an interval."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.runs.metrics import read_metrics
from podium.runs.results import greedy_score
from podium.runs.summary import read_summary

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
T_975 += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
"""Student's t: 97.5 % quantiles for 1 to 30 degrees of freedom."""


RETURN = "episode_return"
Axis = Literal["steps", "time"]
COLUMNS: dict[Axis, str] = {"steps": "step", "time": "wall_s"}


@dataclass(frozen=True)
class Curve:
    """One run: returns, or another metric, over env steps or seconds; greedy evaluations; what it was a run of."""

    path: Path
    steps: np.ndarray  # [N], rising: env steps, or seconds of training
    returns: np.ndarray  # [N]
    experiment: dict[str, Any]
    summary: dict[str, Any]
    evaluations: np.ndarray  # [K, 3]: env steps, mean return of greedy episodes, its standard error

    @property
    def algorithm(self) -> str:
        """The algorithm's name, or nothing if the run does not say."""
        return str(self.experiment.get("algorithm", {}).get("name", ""))

    @property
    def env(self) -> str:
        """The environment's id."""
        return str(self.experiment.get("env", {}).get("id", ""))

    @property
    def seed(self) -> Any:
        """The run's seed."""
        return self.experiment.get("seed", self.summary.get("seed"))


class Band(NamedTuple):
    """Mean and 95 % interval of several runs at the same env steps."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_curve(path: Path, metric: str = RETURN, x: Axis = "steps") -> Curve:
    """The curve of a run directory, of a column of metrics.jsonl; ConfigError if there is nothing of it yet.

    read_curve(Path("runs/pole"), metric="entropy", x="time")
    """
    reports, summary = read_metrics(path), read_summary(path) or {}
    column = COLUMNS[x]
    rows = [row for row in reports if isinstance(row.get(metric), int | float) and column in row]
    points = np.array([(row[column], row[metric]) for row in rows], float).reshape(-1, 2)
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points) and metric == RETURN:
        raise ConfigError(f"run {str(path)!r} has no finished episode to plot yet")
    if not len(points):
        known = sorted({name for row in reports for name, value in row.items() if isinstance(value, int | float)})
        hint = suggest(metric, known) or f"; there are: {', '.join(known)}"
        raise ConfigError(f"--metric {metric}: run {str(path)!r} has none{hint}")
    toml = path / "experiment.toml"
    experiment = tomllib.loads(toml.read_text()) if toml.exists() else {}
    return Curve(path, points[:, 0], points[:, 1], experiment, summary, _read_evaluations(reports, summary))


def _read_evaluations(reports: Sequence[dict[str, Any]], summary: dict[str, Any]) -> np.ndarray:
    """Evaluators' plays, each at the step of the version that was played, then the one at the run's end."""
    steps = {row["update"]: row["step"] for row in reports if "update" in row and "step" in row}
    found: dict[float, tuple[float, float]] = {}
    for row in reports:
        for name in (name for name in row if name.startswith("evaluator-") and name.endswith("/return")):
            worker = name.removesuffix("/return")
            update = row.get(f"{worker}/update")
            if update in steps:
                found[steps[update]] = row[name], row.get(f"{worker}/stderr") or 0.0
    if (score := greedy_score(summary)) is not None and summary.get("env_steps"):
        found[summary["env_steps"]] = score[0], score[1] or 0.0
    points = np.array([(step, *found[step]) for step in sorted(found)], float).reshape(-1, 3)
    return points[np.isfinite(points).all(axis=1)]


def smooth(values: np.ndarray, window: int | None = None) -> np.ndarray:
    """Centred moving average, by default over a twenty-fifth of the curve; at the ends over what there is of it.

    >>> smooth(np.array([0.0, 3.0, 6.0, 0.0]), window=3)
    array([1.5, 3. , 3. , 3. ])
    """
    half = (max(1, len(values) // 25) if window is None else window) // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def combine(curves: Sequence[Curve], points: int = 400) -> Band:
    """Mean of smoothed curves where all of them are defined, and Student's 95 % interval over the runs."""
    start = max(curve.steps[0] for curve in curves)
    stop = max(min(curve.steps[-1] for curve in curves), start)
    steps = np.linspace(start, stop, points)
    values = np.stack([np.interp(steps, curve.steps, smooth(curve.returns)) for curve in curves])
    mean = values.mean(axis=0)
    if len(curves) == 1:
        return Band(steps, mean, mean, mean)
    quantile = T_975[len(curves) - 2] if len(curves) - 1 <= len(T_975) else 1.96
    half = quantile * values.std(axis=0, ddof=1) / np.sqrt(len(curves))
    return Band(steps, mean, mean - half, mean + half)


def group_by_experiment(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Runs that differ only in their seed, together, by a label that says what tells the groups apart."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        same = {key: value for key, value in curve.experiment.items() if key != "seed"} or curve.path.name
        groups.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(curve)
    return dict(zip(_labels([group[0] for group in groups.values()]), groups.values(), strict=True))


def _labels(curves: Sequence[Curve]) -> list[str]:
    """What tells each of these from the others: algorithm and environment, and settings only where those are shared.

    Settings of different algorithms are not comparable: across algorithms, their names say enough.
    """
    labels = []
    for curve in curves:
        names = {"algorithm": curve.algorithm, "env": curve.env}
        parts = [name for kind, name in names.items() if len({getattr(other, kind) for other in curves}) > 1]
        alike = [other for other in curves if (other.algorithm, other.env) == (curve.algorithm, curve.env)]
        settings, own = [_flatten(other.experiment) for other in alike], _flatten(curve.experiment)
        keys = dict.fromkeys(key for setting in settings for key in setting if key != "seed")
        differing = [key for key in keys if len({repr(setting.get(key)) for setting in settings}) > 1]
        parts += [f"{key.rpartition('.')[2]} = {own.get(key)}" for key in differing]
        labels.append(", ".join(filter(None, parts)) or curve.path.name)
    return [
        label if labels.count(label) == 1 else f"{label} ({c.path.name})"
        for label, c in zip(labels, curves, strict=True)
    ]


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
