"""IMPALA on Pong from pixels, beside Sample Factory on the same work: `python benchmarks/pong.py`.

Both step EnvPool's Pong-v5 (32 environments, 84x84x4 bytes, a step is 4 frames), with the Nature CNN, fragments of 16
steps, and one gradient step of 512 steps for each. They take turns, and what counts is the ratio within a
run. Let nothing else run meanwhile.

What it learns is another command, with its preset: `podium train impala envpool:Pong-v5` (2.5 M steps, 10 M frames).
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import throughput
import venvs
from rich.console import Console

import podium

sys.path.insert(0, str(venvs.PINS))

from window import Window, end_on_sigterm, report

LIMIT_S = 900.0
PEER = "sample_factory_pong"
SETTINGS: dict[str, Any] = {
    "env.num_envs": 32,
    "env.wrappers": ["atari"],
    "network.hidden": [],
    "network.vision": "nature",
    "algorithm.fragment_length": 16,
    "algorithm.learning_rate": 6e-4,
    "algorithm.entropy_coef": 0.01,
    "evaluation.episodes": 0,
    "limits.total_steps": 10**9,
}


def train(seconds: float) -> None:
    """Train Podium for a window of so many seconds and print its rate, as the peers' scripts do."""
    end_on_sigterm()
    window = Window(warm_up=2, seconds=seconds)

    def mark(row: dict[str, Any]) -> bool:
        window.mark(row["step"])
        return not window.closed

    with tempfile.TemporaryDirectory() as root:
        run = podium.train(
            "impala", "envpool:Pong-v5", preset="none", set=SETTINGS, root=root, on_report=mark, progress=False
        )
        summary = run.summary
    note = f"mode {summary['mode']}, {summary['env_library']}, mean staleness {summary['staleness']['mean']:.2f}"
    report("podium", version("podium-rl"), "pong", window, note)


def measure(contender: str, seconds: float) -> dict[str, Any]:
    """The result of one contender, trained in a process of its own."""
    if contender == "podium":
        command = [sys.executable, __file__, "--train"]
    else:
        command = [str(venvs.ensure(PEER)), str(venvs.PINS / f"{PEER}.py")]
    command += ["--seconds", str(seconds)]
    # In a session of its own, so that nothing of it is left.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        raise
    if process.returncode:
        raise SystemExit(f"{contender} failed:\n{out[-2000:]}\n{errors[-4000:]}")
    return json.loads(out.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="measured window of each contender in each round")
    parser.add_argument("--skip", nargs="+", default=[], help="contenders to leave out")
    parser.add_argument("--train", action="store_true", help="train Podium here and print its rate; nothing else")
    arguments = parser.parse_args()
    if arguments.train:
        return train(arguments.seconds)
    contenders = [name for name in ("podium", "sample_factory") if name not in arguments.skip]
    results: dict[str, list[dict]] = {name: [] for name in contenders}
    for number in range(arguments.rounds):
        for contender in contenders:
            result = measure(contender, arguments.seconds)
            results[contender].append(result)
            rate = result["steps_per_s"]
            print(f"round {number + 1}  {contender:15} {rate:>8,.0f} steps/s  {result['note']}", flush=True)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}: {' '.join(sys.argv)}")
    if "podium" in results:
        throughput.show("pong", results, Console(width=100))
    return None


if __name__ == "__main__":
    main()
