"""Podium's SAC and TD3 beside those of Stable-Baselines3 and SBX, on the same work: `python benchmarks/off_policy.py`.

HalfCheetah-v5, networks of 256x256, batches of 256 rows, one update for each environment step, in rounds of
8 environments x 8 steps and then 64 updates. Each contender trains in a process of its own, each peer in a virtual
environment of its own. They take turns, and what counts is the ratio within a run. Let nothing else run meanwhile.
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
WORKLOADS = ("sac", "td3")
CONTENDERS = ("podium", "sb3", "sbx")

Results = dict[str, list[dict[str, Any]]]
"""By contender, one for each round."""


def run(contender: str, workload: str, seconds: float) -> dict[str, Any]:
    """Run it in a session of its own, so that nothing of it is left; its last line is its result."""
    ours = contender == "podium"
    python = sys.executable if ours else str(venvs.ensure(contender))
    script = HERE / "podium_off_policy.py" if ours else venvs.script(contender, "off_policy")
    process = subprocess.Popen(
        [python, str(script), "--workload", workload, "--seconds", str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=LIMIT_S + seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        raise
    if process.returncode:
        raise SystemExit(f"{contender} on {workload} failed:\n{out[-2000:]}\n{errors[-4000:]}")
    return json.loads(out.strip().splitlines()[-1])


def measure(workloads: list[str], contenders: list[str], rounds: int, seconds: float) -> dict[str, Results]:
    """Results by workload; contenders take turns."""
    results: dict[str, Results] = {workload: {} for workload in workloads}
    for number in range(rounds):
        for workload in workloads:
            for contender in contenders:
                result = run(contender, workload, seconds)
                results[workload].setdefault(contender, []).append(result)
                rate = result["steps_per_s"]
                print(
                    f"round {number + 1}  {workload:5} {contender:8} {rate:>8,.1f} steps/s  {result['note']}",
                    flush=True,
                )
    return results


def show(workload: str, results: Results, console: Console) -> None:
    """One table: steps, each with its update, and Podium's ratio to each."""
    table = Table(title=f"{workload}: env steps/s, each with an update; median of rounds", title_justify="left")
    for column in ("", "version", "steps/s", "least", "most", "Podium is"):
        table.add_column(column, justify="left" if column in ("", "version") else "right")
    ours = statistics.median(row["steps_per_s"] for row in results["podium"])
    for contender, rows in results.items():
        rates = [row["steps_per_s"] for row in rows]
        rate = statistics.median(rates)
        ratio = "" if contender == "podium" else f"{ours / rate:.2f}x"
        table.add_row(contender, rows[0]["version"], f"{rate:,.1f}", f"{min(rates):,.1f}", f"{max(rates):,.1f}", ratio)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured window of each contender in each round")
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--skip", choices=CONTENDERS[1:], nargs="+", default=[], help="contenders to leave out")
    parser.add_argument("--json", type=Path, help="write every result there too")
    arguments = parser.parse_args()
    contenders = [contender for contender in CONTENDERS if contender not in arguments.skip]
    for contender in contenders[1:]:
        venvs.ensure(contender)
    results = measure(arguments.workload, contenders, arguments.rounds, arguments.seconds)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}: {' '.join(sys.argv)}")
    for workload in arguments.workload:
        show(workload, results[workload], Console(width=100))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
