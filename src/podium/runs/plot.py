"""Learning curves as pictures. Metrics only, no pyplot: nothing global, so any thread may draw."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from podium.core.errors import ConfigError
from podium.runs.curves import RETURN, Axis, Curve, combine, group_by_experiment, read_curve, smooth
from podium.runs.results import format_return, format_score, greedy_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#ca8a04", "#4b5563")
FEWEST_FOR_INTERVAL = 3
"""The 95 % interval of two runs is thirteen standard errors wide either way: it says nothing."""
LABEL_WIDTH = 26
FORMATS = ("png", "pdf", "svg")
INK, GREY, GRID = "#1f2937", "#6b7280", "#e5e7eb"


def plot_run(path: Path) -> Path:
    """Draw the learning curve of a run into its directory.

    plot_run(Path("runs/ppo-CartPole-v1-0003"))        # runs/ppo-CartPole-v1-0003/curve.png
    """
    curve = read_curve(path)
    figure, axes = _new_figure()
    axes.plot(curve.steps, curve.returns, color=COLOURS[0], linewidth=0.9, alpha=0.28)
    line = smooth(curve.returns)
    axes.plot(curve.steps, line, color=COLOURS[0], linewidth=2.2)
    axes.plot(curve.steps[-1:], line[-1:], "o", color=COLOURS[0], markersize=6, markeredgecolor="white")
    if len(curve.evaluations):
        _draw_evaluations(axes, curve.evaluations)
    seed = "" if curve.seed is None else f"seed {curve.seed}"
    axes.set_xlim(left=0)
    _write_title(figure, _heading([curve]) or path.name, "   ·   ".join(filter(None, [seed, *_facts(curve)])))
    return _save(figure, path / "curve.png")


def plot_runs(
    paths: Sequence[Path],
    out: Path | None = None,
    labels: Sequence[str] | None = None,
    metric: str = RETURN,
    x: Axis = "steps",
) -> Path:
    """Draw several runs: mean and 95 % interval over those that differ only in their seed.

    plot_runs([Path("runs/a"), Path("runs/b")], out=Path("compare.pdf"), labels=["PPO", "mine"], metric="entropy")

    `labels`: one for each path; runs of the same label are drawn as one line. The suffix of `out` says its format.
    """
    if not paths:
        raise ConfigError("podium plot: name at least one run")
    if labels is not None and len(labels) != len(paths):
        raise ConfigError(f"labels: {len(labels)} for {len(paths)} runs; give one for each")
    out = out or Path("curves.png")
    _format(out)  # refused before anything is read
    curves = [read_curve(path, metric, x) for path in paths]
    groups = group_by_experiment(curves) if labels is None else _group_by_label(curves, labels)
    figure, axes = _new_figure(metric, x, legend=len(groups) > 1)
    looks = [(style, colour) for style in ("-", "--", ":") for colour in COLOURS]
    for (label, group), (style, colour) in zip(groups.items(), itertools.cycle(looks), strict=False):
        _draw_lines(axes, label, group, colour, style)
    axes.set_xlim(left=0)
    axes.autoscale(False)  # few seeds have wide intervals, which must not press the lines flat
    for group, (_, colour) in zip(groups.values(), itertools.cycle(looks), strict=False):
        if len(group) >= FEWEST_FOR_INTERVAL:
            band = combine(group)
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
    if len(groups) > 1:  # beside the curves: inside, it would lie on some of them
        look = {"fontsize": 9, "labelcolor": INK, "handlelength": 1.4, "labelspacing": 0.9}
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.02), **look)
    _write_title(figure, _heading(curves) or "learning curves", _count(groups))
    return _save(figure, out)


def _draw_evaluations(axes: "Axes", evaluations: np.ndarray) -> None:
    """Greedy evaluations as points with their standard errors; a legend tells them from the training episodes."""
    steps, means, errors = evaluations.T
    look = {"markersize": 7, "markeredgecolor": "white", "elinewidth": 1.4, "capsize": 3}
    axes.errorbar(steps, means, yerr=errors, fmt="D", color=COLOURS[1], label="greedy evaluation", zorder=3, **look)
    axes.plot([], [], color=COLOURS[0], linewidth=2.2, label="training episodes")
    axes.legend(frameon=False, fontsize=9.5, labelcolor=INK, loc="best")


def _draw_lines(axes: "Axes", label: str, group: list[Curve], colour: str, style: str) -> None:
    if len(group) == 1:
        axes.plot(group[0].steps, smooth(group[0].returns), style, color=colour, linewidth=1.8, label=_wrap(label))
        return
    for curve in group:
        axes.plot(curve.steps, smooth(curve.returns), color=colour, linewidth=0.7, alpha=0.3)
    band = combine(group)
    axes.plot(band.steps, band.mean, style, color=colour, linewidth=2.2, label=_wrap(f"{label} ({len(group)} seeds)"))


def _wrap(label: str) -> str:
    return "\n".join(textwrap.wrap(label, LABEL_WIDTH))


def _count(groups: Mapping[str, list[Curve]]) -> str:
    sizes = [len(group) for group in groups.values()]
    runs = "1 run" if sum(sizes) == 1 else f"{sum(sizes)} runs"
    if max(sizes) >= FEWEST_FOR_INTERVAL:
        return f"{runs}   ·   mean and 95 % interval over seeds"
    return f"{runs}   ·   mean over seeds" if max(sizes) > 1 else runs


def _group_by_label(curves: Sequence[Curve], labels: Sequence[str]) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for label, curve in zip(labels, curves, strict=True):
        groups.setdefault(label, []).append(curve)
    return groups


def _heading(curves: Sequence[Curve]) -> str:
    names = [" and ".join(dict.fromkeys(filter(None, column))) for column in _columns(curves)]
    return " on ".join(filter(None, names))


def _columns(curves: Sequence[Curve]) -> tuple[list[str], list[str]]:
    return [_display_name(curve.algorithm) for curve in curves], [curve.env for curve in curves]


def _display_name(algorithm: str) -> str:
    return algorithm.upper() if algorithm.isalnum() and len(algorithm) <= 6 else algorithm


def _facts(curve: Curve) -> list[str]:
    final = (curve.summary.get("episode_return") or {}).get("mean")
    final = final if final is not None else float(np.mean(curve.returns[-5:]))
    greedy = greedy_score(curve.summary)
    facts = [] if greedy is None else [f"greedy {format_score(*greedy)}"]
    facts += [f"training {format_return(final)}", f"{curve.steps[-1]:,.0f} env steps"]
    speed = curve.summary.get("steps_per_s")
    return facts + ([f"{speed:,.0f} steps/s"] if speed else [])


def _new_figure(metric: str = RETURN, x: Axis = "steps", legend: bool = False) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.8), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.13, 0.63 if legend else 0.86, 0.7))
    axes.set_xlabel("environment steps" if x == "steps" else "seconds of training", color=GREY, fontsize=10)
    axes.set_ylabel(metric.replace("_", " "), color=GREY, fontsize=10)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelsize=9, length=0, pad=6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    return figure, axes


def _write_title(figure: "Figure", title: str, caption: str) -> None:
    figure.text(0.1, 0.925, title, fontsize=14, fontweight="bold", color=INK)
    figure.text(0.1, 0.87, caption, fontsize=9.5, color=GREY)


def _format(path: Path) -> str:
    """By the suffix; without one, png."""
    kind = path.suffix.lower().removeprefix(".") or "png"
    if kind not in FORMATS:
        raise ConfigError(f"--out {path}: a picture's name must end in .png, .pdf or .svg")
    return kind


def _save(figure: "Figure", path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=_format(path))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    return path
