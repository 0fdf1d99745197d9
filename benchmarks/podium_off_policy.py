"""Podium's SAC or TD3 on the peers' work, through `podium.train`: prints its environment steps a second."""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from window import Window, parse, report

import podium

WORK: dict[str, Any] = {
    "env.num_envs": 8,
    "network.hidden": [256, 256],
    "network.activation": "relu",
    "algorithm.learning_rate": 3e-4,
    "algorithm.fragment_length": 8,
    "algorithm.batch_size": 256,
    "algorithm.buffer_size": 1_000_000,
    "algorithm.learning_starts": 1_000,
    "algorithm.update_ratio": 1.0,
    "algorithm.tau": 0.005,
    "algorithm.gamma": 0.99,
    "evaluation.episodes": 0,
    "limits.total_steps": 10**9,
}


def main() -> None:
    arguments = parse(["sac", "td3"])
    window = Window(warm_up=2, seconds=arguments.seconds)

    def mark(row: dict[str, Any]) -> bool:
        if row.get("gradient_updates"):  # 0 until the buffer holds enough
            window.mark(row["step"])
        return not window.closed

    with tempfile.TemporaryDirectory() as root:
        run = podium.train(
            arguments.workload, "HalfCheetah-v5", preset="none", set=WORK, root=root, on_report=mark, progress=False
        )
        summary = run.summary
    stale = summary["staleness"]["mean"]
    note = f"mode {summary['mode']}, {summary['env_library']}, mean staleness {stale:.2f}, {os.cpu_count()} cores"
    report("podium", version("podium-rl"), arguments.workload, window, note)


if __name__ == "__main__":
    main()
