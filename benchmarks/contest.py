"""What comparing benchmarks share: runs apart from each other, in turns; medians, tables, ratios to be reached.

results = run_in_turns({"sac": {"podium": [python, "ours.py"], "sb3": [python, "theirs.py"]}}, rounds=3)
print(heading())
show_rates("sac", results["sac"])
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

LIMIT_S = 900.0
MOST_TAKEN = 0.02
"""Share of the cores' time that a virtual machine's host may keep for itself; with more, a turn is taken again."""
TRIES = 2
Row = dict[str, Any]
Results = dict[str, list[Row]]
"""By contender, one row for each round."""
CONSOLE = Console(width=110)


class Figure(NamedTuple):
    """A ratio, and how much it should be at least; None: for information."""

    name: str
    ratio: float
    least: float | None


def make_parser(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """The arguments that all have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="measured window of each contender in each round"
    )
    parser.add_argument("--tries", type=int, default=TRIES, help="how often a turn is taken whose cores the host takes")
    parser.add_argument("--skip", nargs="+", default=[], help="contenders to leave out")
    parser.add_argument("--json", type=Path, help="write every result there too")
    return parser


def run_alone(name: str, command: list[str], limit_s: float = LIMIT_S) -> Row:
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


def run_in_turns(
    commands: Mapping[str, Mapping[str, list[str]]], rounds: int, tries: int = TRIES
) -> dict[str, Results]:
    """Results by workload of `commands[workload][contender]`, which all take turns.

    A turn whose cores the host kept for others is taken again, whoever's it was; the least disturbed one counts.
    """
    results: dict[str, Results] = {workload: {} for workload in commands}
    for number in range(rounds):
        for workload, contenders in commands.items():
            for contender, command in contenders.items():
                name = f"round {number + 1}  {workload:15} {contender:15}"
                turns = [take_turn(name, command)]
                while len(turns) < tries and turns[-1]["taken"] > MOST_TAKEN:
                    turns.append(take_turn(name, command))
                results[workload].setdefault(contender, []).append(min(turns, key=lambda turn: turn["taken"]))
    return results


def take_turn(name: str, command: list[str]) -> Row:
    """One run, told in one line; `taken` is the share of the cores' time that the host kept meanwhile."""
    began, before = time.perf_counter(), stolen_s()
    row = run_alone(name, command)
    row["taken"] = (stolen_s() - before) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    taken = f"  ({row['taken']:.0%} of the cores taken)" if row["taken"] > MOST_TAKEN else ""
    print(f"{name} {row['steps_per_s']:>12,.1f} steps/s  {row.get('note', '')}{taken}", flush=True)
    return row


def stolen_s() -> float:
    """Core-seconds so far that a virtual machine was ready to run and its host did not let it; elsewhere 0."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    return int(stat.read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


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


def show_rates(workload: str, results: Results) -> None:
    """One table: rate, spread, and Podium's ratio to each."""
    table = Table(title=f"{workload}: env steps/s, median of rounds", title_justify="left")
    for column in ("", "version", "steps/s", "least", "most", "Podium is"):
        table.add_column(column, justify="left" if column in ("", "version") else "right")
    for contender, rows in results.items():
        rates = [row["steps_per_s"] for row in rows]
        rate = statistics.median(rates)
        if "of_limit" in rows[0]:  # of what was trained in the same seconds
            ratio = f"{100 * middle(rows, lambda row: row['of_limit']):.0f} %"
        else:
            ratio = "" if contender == "podium" else f"{middle(results['podium'], _rate) / rate:.2f}x"
        spread = f"{rate:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}"
        table.add_row(contender, rows[0]["version"], *spread, ratio)
    CONSOLE.print(table)


def _rate(row: Row) -> float:
    return row["steps_per_s"]


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
