"""Podium beside its peers, on the same work: `make bench`, or `podium bench throughput`.

Each contender trains in a process of its own, each peer in a virtual environment of its own. They take turns,
several rounds in one run, and what counts is the ratio within a run. Let nothing else run meanwhile.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import venvs
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
LIMIT_S = 600.0
CONTENDERS = {
    "halfcheetah": ("podium", "sb3", "sample_factory", "rllib"),
    "halfcheetah-64": ("podium",),
    "cartpole-16": ("podium", "rejax"),
    "cartpole-2048": ("podium", "rejax"),
}


def command(contender: str, workload: str, seconds: float) -> list[str]:
    """What trains this contender on this work."""
    if contender in ("podium", "limit"):
        script, python = HERE / f"{'podium_ppo' if contender == 'podium' else 'limit'}.py", sys.executable
    else:
        script, python = venvs.script(contender), str(venvs.ensure(contender))
    return [python, str(script), "--workload", workload, "--seconds", str(seconds)]


def run(contender: str, workload: str, seconds: float) -> dict[str, Any]:
    """Run it in a session of its own, so that nothing of it is left; its last line is its result."""
    process = subprocess.Popen(
        command(contender, workload, seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        raise
    if process.returncode:
        raise SystemExit(f"{contender} on {workload} failed:\n{out[-2000:]}\n{errors[-4000:]}")
    return json.loads(out.strip().splitlines()[-1])


def measure(workloads: list[str], rounds: int, seconds: float, skip: list[str]) -> dict[str, dict[str, list[dict]]]:
    """Results by workload and contender, one for each round; contenders take turns."""
    results: dict[str, dict[str, list[dict]]] = {workload: {} for workload in workloads}
    for number in range(rounds):
        for workload in workloads:
            with_limit = ("limit",) if workload.startswith("halfcheetah") else ()
            for contender in (*CONTENDERS[workload], *with_limit):
                if contender in skip:
                    continue
                result = run(contender, workload, seconds)
                results[workload].setdefault(contender, []).append(result)
                rate = result.get("steps_per_s") or result["limit_steps_per_s"]
                print(f"round {number + 1}  {workload:15} {contender:15} {rate:>10,.0f} steps/s", flush=True)
    return results


def middle(results: list[dict], key: str) -> float:
    """The median over the rounds."""
    return statistics.median(result[key] for result in results)


def show(workload: str, results: dict[str, list[dict]], console: Console) -> None:
    """One table: rate, spread, and Podium's ratio to each."""
    table = Table(title=f"{workload}: env steps/s trained, median of rounds", title_justify="left")
    for column in ("", "version", "steps/s", "least", "most", "Podium is"):
        table.add_column(column, justify="left" if column in ("", "version") else "right")
    ours = middle(results["podium"], "steps_per_s")
    for contender, rows in results.items():
        if contender == "limit":
            continue
        rates = [row["steps_per_s"] for row in rows]
        rate = statistics.median(rates)
        ratio = "" if contender == "podium" else f"{ours / rate:.2f}x"
        table.add_row(contender, rows[0]["version"], f"{rate:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}", ratio)
    if "limit" in results:
        limits = [row["limit_steps_per_s"] for row in results["limit"]]
        share = 100 * middle(results["limit"], "of_limit")  # of training in the same seconds, not of the row above
        rates = f"{statistics.median(limits):,.0f}", f"{min(limits):,.0f}", f"{max(limits):,.0f}"
        table.add_row("zero-overhead limit", "", *rates, f"{share:.0f} %")
    console.print(table)
    if "limit" in results:
        parts = {name: middle(results["limit"], f"{name}_core_us") for name in ("env", "act", "update")}
        spent = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
        console.print(
            f"env only {middle(results['limit'], 'env_only_steps_per_s'):,.0f} | "
            f"env + act {middle(results['limit'], 'env_act_steps_per_s'):,.0f} | training {ours:,.0f} steps/s; "
            f"core-microseconds a step: {spent}\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured window of each contender in each round")
    parser.add_argument("--workload", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    parser.add_argument("--skip", nargs="+", default=[], help="contenders to leave out")
    parser.add_argument("--json", type=Path, help="write every result there too")
    arguments = parser.parse_args()
    for contender in {c for w in arguments.workload for c in CONTENDERS[w]} - {"podium", *arguments.skip}:
        venvs.ensure(contender)
    results = measure(arguments.workload, arguments.rounds, arguments.seconds, arguments.skip)
    console = Console(width=100)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}: {' '.join(sys.argv)}")
    for workload in arguments.workload:
        show(workload, results[workload], console)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
