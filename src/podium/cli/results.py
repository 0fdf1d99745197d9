"""`podium eval`, `podium plot` and `podium runs`: what came out of training."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional

from podium.cli.arguments import Command, Switch, flag, read_whole
from podium.cli.tables import print_table
from podium.core.errors import ConfigError


@dataclass(frozen=True)
class Eval(Command):
    """Play episodes with a trained policy, greedy ones by default; prints their mean and its standard error."""

    EXAMPLES: ClassVar[str] = """\
  podium eval                                           10 episodes of the latest run
  podium eval NAME --best --stochastic                  the best checkpoint, actions drawn as in training
  podium eval NAME --episodes 100 --video               more of them, and an mp4 of one"""

    name: Positional[Annotated[str, flag("[RUN]", "(default: latest)")]] = "latest"
    """Name or path of a run."""
    episodes: Annotated[str, flag("N", "(default: 10)")] = "10"
    """How many."""
    video: Switch = False
    """Film one episode (mp4 in the run's videos/)."""
    best: Switch = False
    """Play the best checkpoint (highest training return) instead of the newest."""
    stochastic: Switch = False
    """Draw actions as in training instead of taking the most likely one."""
    env: Annotated[str | None, flag("ENV")] = None
    """Environment to play in, if not the run's own: an id or my_module:make_env."""
    seed: Annotated[str | None, flag("S")] = None
    """Seed of the environments."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Evaluate."""
        episodes = read_whole("--episodes", self.episodes)
        if episodes is None or episodes < 1:
            raise ConfigError(f"--episodes = {episodes}: must be at least 1")
        choice: dict[str, Any] = {"episodes": episodes, "video": self.video, "root": self.root, "env": self.env}
        choice |= {"best": self.best, "deterministic": not self.stochastic}
        seed = read_whole("--seed", self.seed)
        if seed is not None:
            choice["seed"] = seed

        import podium.api as api
        from podium.runs.results import format_score

        result = api.evaluate(self.name, **choice)
        score = format_score(result.mean, result.stderr if result.episodes > 1 else None)
        print(f"return {score} (mean and standard error of {result.episodes} episodes)")
        if result.video is not None:
            print(f"video {result.video}")
        return 0


@dataclass(frozen=True)
class Plot(Command):
    """Draw learning curves; runs that differ only in their seed become a mean and an interval."""

    EXAMPLES: ClassVar[str] = """\
  podium plot                                           the latest run
  podium plot RUN-0001 RUN-0002 RUN-0003 --out curve.png
  podium plot many --out many.pdf                       many-seed0, many-seed1, ..., all that begin so
  podium plot RUN --metric entropy --x time             another column of metrics.jsonl, over seconds"""

    names: Positional[Annotated[tuple[str, ...], flag("[RUN ...]", "(default: latest)")]] = ()
    """Names or paths of runs; the beginning of a name stands for all runs that have it."""
    out: Annotated[Path | None, flag("FILE")] = None
    """Where the picture goes, as .png, .pdf or .svg; left out, curves.png here."""
    metric: Annotated[str, flag("NAME", "(default: episode_return)")] = "episode_return"
    """A column of metrics.jsonl."""
    x: Annotated[str, flag("steps|time", "(default: steps)")] = "steps"
    """Environment steps, or seconds of training."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Plot."""
        from podium.runs.curves import COLUMNS
        from podium.runs.directory import find_runs
        from podium.runs.plot import plot_runs

        if self.x not in COLUMNS:
            raise ConfigError(f"--x {self.x}: must be one of {', '.join(COLUMNS)}")
        found = [run.path for name in self.names or ("latest",) for run in find_runs(name, self.root)]
        print(plot_runs(list(dict.fromkeys(found)), self.out, metric=self.metric, x=self.x))
        return 0


@dataclass(frozen=True)
class Runs(Command):
    """List the runs of a directory, the oldest first; `died` is one that was killed."""

    EXAMPLES: ClassVar[str] = """\
  podium runs
  podium runs --root elsewhere/runs"""

    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """List."""
        from podium.runs.directory import list_runs, root_flag
        from podium.runs.overview import current_summary

        rows = [_row(run.path, run.experiment_toml, current_summary(run)) for run in list_runs(self.root)]
        if not rows:
            print(f"no runs in {self.root}; `podium train ppo CartPole-v1{root_flag(self.root)}` starts one")
            return 0
        print_table(["run", "status", "algorithm", "env", "seed", "steps", "greedy", "training", "steps/s"], rows)
        return 0


def _row(path: Path, experiment: Path, summary: dict[str, Any]) -> list[object]:
    from podium.runs.results import format_score, greedy_score

    algorithm, env, seed = _peek(experiment)
    training, greedy = summary.get("episode_return") or {}, greedy_score(summary)
    score = None if greedy is None else format_score(*greedy)
    rate = summary.get("steps_per_s")
    rate = None if rate is None else round(rate)
    return [
        path.name,
        summary["status"],
        algorithm,
        env,
        str(seed),
        summary.get("env_steps"),
        score,
        training.get("mean"),
        rate,
    ]


def _peek(experiment: Path) -> tuple[object, object, object]:
    """Algorithm, environment and seed, without building the experiment: its code may be gone."""
    try:
        tree = tomllib.loads(experiment.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None, None, None
    return tree.get("algorithm", {}).get("name"), tree.get("env", {}).get("id"), tree.get("seed")
