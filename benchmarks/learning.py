"""What the presets learn, over seeds, beside the published figures: `podium bench learning`.

Each run is `podium train ALGORITHM ENV --seed S` with its preset. Its score is the mean return of its last 100 training
episodes, or, for algorithms whose exploration is not part of their policy, of the greedy episodes at its end. Printed:
mean, interquartile mean, and a 95 % bootstrap interval of the mean over the seeds.

Runs are kept with `--root`: what is finished there is not trained again, and what was interrupted goes on, so that long
tasks can be made in several sittings. With `--list` nothing is trained.
"""

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import podium


class Task(NamedTuple):
    """A preset, and what it should reach by its limit of steps (or that of the preset)."""

    algorithm: str
    env: str
    seeds: int
    goal: float
    published: str
    score: Literal["training", "greedy"] = "training"
    steps: int | None = None

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.env.split(':')[-1]}" + (f"@{self.steps:,}" if self.steps else "")


TASKS = {
    task.name: task
    for task in (
        Task("ppo", "CartPole-v1", 5, 490, "CleanRL 490, SB3 zoo 500 at 100 k"),
        Task("ppo", "Acrobot-v1", 5, -85, "CleanRL -86"),
        Task("ppo", "HalfCheetah-v5", 3, 4000, "SB3 zoo 5,819 at 1 M"),
        Task("ppo", "Hopper-v5", 3, 2300, "SB3 zoo 2,410 at 1 M"),
        Task("dqn", "CartPole-v1", 5, 500, "SB3 zoo 500 at 50 k", "greedy"),
        Task("dqn", "Acrobot-v1", 5, -80, "SB3 zoo -76 at 100 k"),
        Task("ddpg", "Pendulum-v1", 5, -160, "SB3 zoo -152 at 20 k", "greedy"),
        Task("td3", "HalfCheetah-v5", 3, 5000, "", "greedy", 300_000),
        Task("sac", "HalfCheetah-v5", 3, 5000, "", "greedy", 300_000),
        Task("sac", "HalfCheetah-v5", 1, 9600, "SB3 zoo 9,535 at 1 M", "greedy"),
        Task("es", "HalfCheetah-v5", 3, 4000, "ARS 3,430 by 2 to 6 M", "greedy"),
        Task("impala", "podium:Catch-v0", 5, 1.0, "best possible", "greedy"),
        Task("impala", "envpool:Pong-v5", 3, 18, "best possible 21"),
        Task("appo", "envpool:Pong-v5", 1, 18, "best possible 21"),
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


def finish(task: Task, seed: int, root: Path) -> podium.Run:
    """The finished run of one seed: found, resumed or trained."""
    name = f"{task.name}-seed{seed}".replace("/", "-").replace("@", "-").replace(",", "")
    run = podium.Run(root / name)
    if not run.path.exists():
        return podium.train(
            task.algorithm, task.env, name=name, seed=seed, total_steps=task.steps, root=root, progress=False
        )
    return run if run.summary.get("status") == "done" else podium.resume(run, progress=False)


def measure(task: Task, seeds: int, root: Path) -> list[str]:
    """The task's row of the table."""
    scores, steps, seconds = [], 0, 0.0
    for seed in range(seeds):
        summary = finish(task, seed, root).summary
        training, greedy = summary["episode_return"]["mean"], summary["eval_return"]
        scores.append(training if task.score == "training" else greedy)
        steps, seconds = summary["env_steps"], seconds + summary["wall_s"]
        print(f"{task.name} seed {seed}: training {training:,.1f}, greedy {greedy:,.1f}", flush=True)
    low, high = bootstrap_interval(scores)
    of_scores = f"{np.mean(scores):,.1f}", f"{interquartile_mean(scores):,.1f}", f"{low:,.1f} .. {high:,.1f}"
    goal = f"{task.goal:,}", task.published
    return [task.name, task.score, f"{steps:,}", str(seeds), *of_scores, *goal, f"{seconds / seeds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--list", action="store_true", help="print the names of the tasks")
    parser.add_argument("--seeds", type=int, help="instead of each task's own number")
    parser.add_argument("--root", type=Path, help="keep the runs there, and go on with those that are")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(TASKS))
        return
    table = Table(title="Presets over seeds", title_justify="left")
    columns = ("task", "score", "steps", "seeds", "mean", "IQM", "95 % interval", "goal", "published", "s a run")
    for column in columns:
        table.add_column(column, justify="left" if column in ("task", "score", "published") else "right")
    with tempfile.TemporaryDirectory() as folder:
        for task in (TASKS[name] for name in arguments.task):
            table.add_row(*measure(task, arguments.seeds or task.seeds, arguments.root or Path(folder)))
    print(f"\n{datetime.now(UTC):%Y-%m-%d}: {' '.join(sys.argv)}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
