"""`podium train` and `podium resume`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, UseAppendAction

from podium.cli.arguments import Command, Switch, flag, read_limit, read_whole
from podium.cli.field_help import describe_fields
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.core.settings import resolve
from podium.core.toml import load
from podium.runs.directory import stem

if TYPE_CHECKING:
    from podium.runs.directory import RunDirectory

TRACKERS = ("tensorboard", "wandb")
DRAWING_LIBRARIES = ("gymnasium", "envpool")
"""Libraries whose environments mostly can be drawn."""


@dataclass(frozen=True)
class Train(Command):
    """Train an agent. Settings: defaults < preset < --config < flags and --set."""

    EXAMPLES: ClassVar[str] = """\
  podium train ppo CartPole-v1                          solved in seconds, with its preset
  podium train ppo HalfCheetah-v5 --seeds 3             three seeds, one run each
  podium train ppo CartPole-v1 --set algorithm.learning_rate=1e-3 network.hidden=[128,128]
  podium train ppo gymnax:CartPole-v1 --total-steps 1e6 an environment written in JAX: one fused program
  podium train my_module:algorithm my_module:make_env   your own, by Python path
  podium train ppo HalfCheetah-v5 --set topology.actors=4         a learner and four actor processes
  podium train ppo HalfCheetah-v5 --topology seed                 actions chosen by an inference worker
  podium train --config runs/NAME/experiment.toml       a run again
  podium train ppo Pendulum-v1 --dry-run                what would run, without running it"""

    algorithm: Positional[Annotated[str | None, flag("[ALGORITHM]")]] = None
    """Its name (`podium algorithms`) or Python path my_module:algorithm; --config may give it."""
    env: Positional[Annotated[str | None, flag("[ENV]")]] = None
    """Its id (`podium envs`), LIBRARY:ID or Python path my_module:make_env; --config may give it."""
    name: Annotated[str | None, flag("NAME")] = None
    """Name of the run's directory; left out, it is numbered after algorithm and environment."""
    overwrite: Switch = False
    """Replace a run of that name."""
    total_steps: Annotated[str | None, flag("N")] = None
    """Environment steps (limits.total_steps)."""
    seed: Annotated[str | None, flag("S")] = None
    """Where random numbers begin. Two runs with one seed are equal bit for bit in fused mode and with
    --deterministic; else actors and learner overlap, and the runs differ after a few updates."""
    deterministic: Switch = False
    """Make two runs with one seed equal bit for bit: actors and learner take turns (topology.staleness=0), where the
    parts run is not measured, and no limit goes by the clock."""
    seeds: Annotated[str | None, flag("N")] = None
    """Train N runs, with seeds 0 to N-1: NAME-seed0 and so on, as many at once as there are cores."""
    preset: Annotated[str, flag("NAME|none")] = "auto"
    """One of `podium presets`; left out, the one that fits algorithm and environment."""
    topology: Annotated[str | None, flag("impala|seed|decoupled")] = None
    """An architecture by name: presets of the topology fields, which --config and --set may change."""
    init_from: Annotated[str | None, flag("RUN")] = None
    """Start from another run's training state: parameters, optimiser and normalisers."""
    config: Annotated[Path | None, flag("FILE")] = None
    """TOML with any part of an experiment."""
    set: UseAppendAction[Annotated[tuple[str, ...], flag("KEY=VALUE ...")]] = ()
    """Set fields: algorithm.gamma=0.98 network.hidden=[64,64] limits.wall_s=none env.kwargs.NAME=VALUE."""
    gym_packages: Annotated[str | None, flag("LIST")] = None
    """Modules to import first, with a comma between them: those that register environments with Gymnasium."""
    track: Annotated[str, flag("LIST", "(default: tensorboard)")] = "tensorboard"
    """Where curves go beside metrics.jsonl: tensorboard, wandb, both with a comma, or none."""
    metrics_port: Annotated[str | None, flag("PORT")] = None
    """Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics; 0 takes a free port and prints it."""
    on: Annotated[str, flag("local|ray|HOST:PORT", "(default: local)")] = "local"
    """Where its workers run: this machine, a Ray cluster of this machine, or a Ray cluster."""
    storage: Annotated[str | None, flag("URL")] = None
    """Keep its files there as well: s3://bucket/runs, gs://bucket/runs, file:///shared/runs."""
    dry_run: Switch = False
    """Print the resolved experiment and program, and start nothing."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""
    quiet: Switch = False
    """Print the run's directory only."""

    def more_help(self) -> str:
        """The fields of the algorithm that stands beside --help."""
        algorithm, env = self.algorithm, self.env
        if algorithm is None and self.config is not None:
            tree = load(self.config)
            algorithm, env = tree.get("algorithm", {}).get("name"), tree.get("env", {}).get("id")
        if algorithm is None:
            return "fields of --set: `podium train ppo --help` lists them all, with defaults and meanings"
        return describe_fields(algorithm, env)

    def run(self) -> int:
        """Check everything that can be checked at once, then train."""
        if self.seed is not None and self.seeds is not None:
            raise ConfigError(f"--seed {self.seed} and --seeds {self.seeds}: give one of them")
        seeds = read_whole("--seeds", self.seeds)
        if seeds is not None and seeds < 1:
            raise ConfigError(f"--seeds = {seeds}: must be at least 1")
        trackers = read_trackers(self.track)
        port = read_port(self.metrics_port)
        packages = [] if self.gym_packages is None else [f"env.packages={self.gym_packages}"]
        # A typing mistake is told before jax is imported.
        resolved = resolve(
            self.algorithm,
            self.env,
            preset=self.preset,
            topology=self.topology,
            config=self.config,
            overrides=[*packages, *self.set],
            total_steps=read_whole("--total-steps", self.total_steps),
            seed=read_whole("--seed", self.seed),
            deterministic=self.deterministic,
        )
        if seeds is not None and resolved.origins["seed"] == "flag":
            raise ConfigError(f"--seeds {seeds} and --set seed={resolved.experiment.seed}: give one of them")
        if seeds is not None and not self.dry_run and not port:
            from podium.launch.seeds import seeds_at_once

            if (at_once := seeds_at_once(resolved.experiment, seeds)) > 1:
                return self.run_seeds(resolved.experiment, seeds, at_once)

        import podium.api as api

        if self.dry_run:
            print(api.dry_run(resolved))
            return 0
        options: dict[str, Any] = {"name": self.name, "overwrite": self.overwrite, "init_from": self.init_from}
        options |= {"track": trackers, "root": self.root, "progress": not self.quiet} | port
        options |= {"on": self.on, "storage": self.storage}
        if seeds is not None:
            runs = api.train_seeds(resolved, **options, seeds=seeds)
        else:
            runs = [api.train(resolved, **options)]
        return tell_end(runs, self.quiet)

    def run_seeds(self, experiment: Experiment, seeds: int, at_once: int) -> int:
        """A process for each seed; the exit code is that of the first seed that has another than 0."""
        from podium.api import Run
        from podium.launch.seeds import SeedRuns, free_name

        name = self.name or free_name(self.root, stem(experiment))
        names = [f"{name}-seed{seed}" for seed in range(seeds)]
        commands = [[*self._repeat(), "--seed", str(seed), "--name", run] for seed, run in enumerate(names)]
        code = SeedRuns(commands, at_once).run()
        if runs := [run for run in (Run(self.root / name) for name in names) if run.summary]:
            tell_end(runs, self.quiet)
        return code

    def _repeat(self) -> list[str]:
        """The arguments that every seed's run is given, as they were typed."""
        own = ("algorithm", "env", "seed", "seeds", "name", "set", "quiet")
        given = [argument for argument in (self.algorithm, self.env) if argument is not None]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in own and value != field.default:
                given += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return [*given, *(["--set", *self.set] if self.set else [])]


@dataclass(frozen=True)
class Resume(Command):
    """Go on with a run from its last checkpoint, after an interruption or to a later end."""

    EXAMPLES: ClassVar[str] = """\
  podium resume                                         the latest run, to the end that it had
  podium resume NAME --total-steps 2e6                  a run that is done, for longer
  podium resume NAME --set algorithm.learning_rate=1e-4 with another learning rate
  podium resume NAME --target-return none               one that reached its return, to its last step"""

    name: Positional[Annotated[str, flag("[RUN]", "(default: latest)")]] = "latest"
    """Name or path of a run, or its URL in storage."""
    on: Annotated[str | None, flag("local|ray|HOST:PORT")] = None
    """Run its workers elsewhere than before."""
    total_steps: Annotated[str | None, flag("N")] = None
    """A new end, in environment steps from the run's beginning."""
    wall_s: Annotated[str | None, flag("S|none")] = None
    """A new end, in seconds of training from the run's beginning."""
    target_return: Annotated[str | None, flag("R|none")] = None
    """A new return to end at."""
    set: UseAppendAction[Annotated[tuple[str, ...], flag("KEY=VALUE ...")]] = ()
    """Change limits.*, evaluation.*, checkpoint.* and traced hyper-parameters: algorithm.learning_rate=1e-4."""
    metrics_port: Annotated[str | None, flag("PORT")] = None
    """Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics; 0 takes a free port and prints it."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""
    quiet: Switch = False
    """Print the run's directory only."""

    def run(self) -> int:
        """Resume."""
        limits = {
            "total_steps": read_whole("--total-steps", self.total_steps),
            "wall_s": read_limit("--wall-s", self.wall_s),
            "target_return": read_limit("--target-return", self.target_return),
        }
        port = read_port(self.metrics_port)

        import podium.api as api

        run = api.resume(self.name, root=self.root, on=self.on, set=self.set, **limits, progress=not self.quiet, **port)
        return tell_end([run], self.quiet)


def read_trackers(text: str) -> tuple[str, ...]:
    """`tensorboard,wandb` as a tuple; `none` as an empty one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip() not in ("", "none"))
    for name in names:
        if name not in TRACKERS:
            hint = suggest(name, TRACKERS)
            raise ConfigError(f"--track {text}: {name!r} must be one of {', '.join(TRACKERS)}, none{hint}")
    return names


def read_port(text: str | None) -> dict[str, Any]:
    """`--metrics-port` as an argument of `api.train`, if it was given."""
    port = read_whole("--metrics-port", text)
    if port is None:
        return {}
    from podium.runs.exposition import check_port

    check_port(port)
    return {"metrics_port": port}


def tell_end(runs: Sequence[Any], quiet: bool) -> int:
    """Say what came out, where it lies, what was restarted, and what to try next."""
    from podium.runs.directory import RunDirectory
    from podium.runs.restarts import describe_restarts
    from podium.runs.results import describe_result

    for run in runs:
        if quiet:
            print(run.path)
            continue
        print(f"{run.path}: {describe_result(run.summary)}")
        if restarts := describe_restarts(run.summary):
            print(restarts)
    if not quiet:
        print(f"next: {' | '.join(_next_commands([RunDirectory(run.path) for run in runs], runs[0].summary))}")
    return 0


def _next_commands(runs: "Sequence[RunDirectory]", summary: Mapping[str, Any]) -> list[str]:
    """Commands about these runs, that work as they stand; `summary` is the first one's."""
    from podium.runs.results import how_to_go_on

    first = runs[0].argument
    others = "".join(f"{shlex.quote(run.name)} " for run in runs[:-1])
    film = " --video" if summary.get("env_library") in DRAWING_LIBRARIES else ""
    return [
        f"podium eval {first}{film}",
        f"podium plot {others}{runs[-1].argument}",
        f"podium resume {first}{how_to_go_on(summary)}",
    ]
