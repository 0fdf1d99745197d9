"""Podium's PPO on the peers' work, through `podium.train`: prints its environment steps a second."""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from window import Window, parse, report

import podium

SAME: dict[str, Any] = {
    "algorithm.learning_rate": 3e-4,
    "algorithm.gamma": 0.99,
    "algorithm.gae_lambda": 0.95,
    "algorithm.max_grad_norm": 0.5,
    "network.hidden": [64, 64],
    "network.activation": "tanh",
    "evaluation.episodes": 0,
    "limits.total_steps": 10**9,
}


def work(env: str, num_envs: int, length: int, epochs: int, minibatch: int) -> tuple[str, dict[str, Any]]:
    """An environment, and the settings that make it the peers' work."""
    return env, {
        **SAME,
        "env.num_envs": num_envs,
        "algorithm.fragment_length": length,
        "algorithm.num_epochs": epochs,
        "algorithm.minibatch_size": minibatch,
    }


WORKLOADS = {
    "halfcheetah": work("HalfCheetah-v5", 16, 128, epochs=10, minibatch=256),
    "halfcheetah-64": work("HalfCheetah-v5", 64, 32, epochs=10, minibatch=256),
    "cartpole-16": work("gymnax:CartPole-v1", 16, 128, epochs=10, minibatch=256),
    "cartpole-2048": work("gymnax:CartPole-v1", 2048, 128, epochs=4, minibatch=65_536),
}
for name in ("cartpole-16", "cartpole-2048"):
    WORKLOADS[name][1]["algorithm.grad_norm_of"] = "each"  # as rejax does, which has an optimiser for each network


def main() -> None:
    arguments = parse(list(WORKLOADS))
    env, settings = WORKLOADS[arguments.workload]
    window = Window(warm_up=2, seconds=arguments.seconds)

    def mark(row: dict[str, Any]) -> bool:
        window.mark(row["step"])
        return not window.closed

    with tempfile.TemporaryDirectory() as root:
        run = podium.train("ppo", env, preset="none", set=settings, root=root, on_report=mark, progress=False)
        summary = run.summary
    stale = summary["staleness"]["mean"]
    note = f"mode {summary['mode']}, {summary['env_library']}, mean staleness {stale:.2f}, {os.cpu_count()} cores"
    report("podium", version("podium-rl"), arguments.workload, window, note)


if __name__ == "__main__":
    main()
