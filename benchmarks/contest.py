"""What comparing benchmarks have in common: runs apart from each other, medians, tables, ratios to be reached."""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
CONSOLE = Console(width=110)


class Figure(NamedTuple):
    """A ratio, and how much it should be at least; None: for information."""

    name: str
    ratio: float
    least: float | None


def run_alone(name: str, command: list[str], limit_s: float) -> Row:
    """Run a command in a session of its own, so that nothing of it is left; its last line is its result, in JSON."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=limit_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        raise
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{out[-2000:]}\n{errors[-4000:]}")
    return json.loads(out.strip().splitlines()[-1])


def middle(rows: Iterable[Row], value: Callable[[Row], float]) -> float:
    """The median over the rounds."""
    return statistics.median(value(row) for row in rows)


def heading() -> str:
    """When, on what, and how it was measured."""
    return f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}: {' '.join(sys.argv)}"


def make_table(title: str, columns: Sequence[str]) -> Table:
    """A table of numbers: its first column has their names."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def show_figures(figures: Iterable[Figure]) -> bool:
    """What was to be reached, and what was; False if something was missed."""
    table = make_table("ratios of medians", ("ratio", "at least", ""))
    good = True
    for figure in figures:
        wanted = "" if figure.least is None else f"{figure.least:g}"
        reached = figure.least is None or figure.ratio >= figure.least
        good = good and reached
        verdict = "" if figure.least is None else "reached" if reached else "MISSED"
        table.add_row(figure.name, f"{figure.ratio:.2f}", wanted, verdict)
    CONSOLE.print(table)
    return good
