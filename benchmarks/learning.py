"""What the presets learn, over seeds, beside the published figures: `podium bench learning`.

Each run is `podium train ALGORITHM ENV --seed S` with its preset. A run's score is the mean return of its last 100
training episodes, as its summary.json has it. Printed: mean, interquartile mean, and a 95 % bootstrap interval
of the mean over the seeds.
"""

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import podium


class Task(NamedTuple):
    env: str
    seeds: int
    goal: float
    published: str


TASKS = {
    task.env: task
    for task in (
        Task("CartPole-v1", 5, 490, "CleanRL 490, SB3 zoo 500 at 100 k"),
        Task("Acrobot-v1", 5, -85, "CleanRL -86"),
        Task("HalfCheetah-v5", 3, 4000, "SB3 zoo 5,819 at 1 M"),
        Task("Hopper-v5", 3, 2300, "SB3 zoo 2,410 at 1 M"),
    )
}


def interquartile_mean(scores: list[float]) -> float:
    """The mean of the middle half, seeds at its edges counted in part."""
    ordered, n = np.sort(scores), len(scores)
    weight = np.clip(np.minimum(np.arange(1, n + 1) - n / 4, 3 * n / 4 - np.arange(n)), 0, 1)
    return float(np.average(ordered, weights=weight))


def bootstrap_interval(scores: list[float], draws: int = 10_000) -> tuple[float, float]:
    """Where the mean of such seeds lies in 95 of 100 resamplings."""
    means = np.random.default_rng(0).choice(scores, (draws, len(scores))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, help="instead of each task's own number")
    parser.add_argument("--root", type=Path, help="keep the runs there")
    arguments = parser.parse_args()
    table = Table(title="PPO presets: mean return of the last 100 training episodes", title_justify="left")
    for column in ("env", "steps", "seeds", "mean", "IQM", "95 % interval", "goal", "published", "s a run"):
        table.add_column(column, justify="left" if column in ("env", "published") else "right")
    with tempfile.TemporaryDirectory() as folder:
        for task in (TASKS[env] for env in arguments.env):
            scores, steps, began = [], 0, time.monotonic()
            seeds = arguments.seeds or task.seeds
            for seed in range(seeds):
                name = f"learning-{task.env}-seed{seed}"
                root = arguments.root or folder
                run = podium.train("ppo", task.env, name=name, overwrite=True, seed=seed, root=root, progress=False)
                scores.append(run.summary["episode_return"]["mean"])
                steps = run.summary["env_steps"]
                print(f"{task.env} seed {seed}: {scores[-1]:,.1f} (eval {run.summary['eval_return']:,.1f})", flush=True)
            low, high = bootstrap_interval(scores)
            spent = (time.monotonic() - began) / seeds
            cells = (f"{np.mean(scores):,.1f}", f"{interquartile_mean(scores):,.1f}", f"{low:,.1f} .. {high:,.1f}")
            table.add_row(task.env, f"{steps:,}", str(seeds), *cells, f"{task.goal:,}", task.published, f"{spent:.0f}")
    print(f"\n{datetime.now(UTC):%Y-%m-%d}: {' '.join(sys.argv)}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
