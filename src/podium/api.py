"""Podium in Python: the same code that the command line runs.

run = podium.train("ppo", "CartPole-v1", total_steps=100_000)
policy = podium.load(run)
action, memory = policy.predict(obs)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.core import settings
from podium.core.callback import Callback
from podium.core.changes import change_experiment
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import find_path
from podium.runs.directory import RunDirectory, find_run
from podium.runs.summary import read_summary

if TYPE_CHECKING:  # jax takes a second to import, and `import podium` should not
    from podium.launch.plan import Plan
    from podium.launch.policy import Policy
    from podium.runs.recorder import OnReport

Overrides = Mapping[str, Any] | Sequence[str]
Algorithm = str | Callable | Experiment | settings.Resolved | None
"""A name or Python path, a function that makes one, or a whole experiment; the command line has it resolved already."""


@dataclass(frozen=True)
class Run:
    """A run on disk. `env_factory` is the callable that it was trained with, if it was given one."""

    path: Path
    env_factory: Callable | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Its directory's name."""
        return self.path.name

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says; empty while there is none."""
        return read_summary(self.path) or {}


@dataclass(frozen=True)
class Evaluation:
    """Episodes played by a trained policy."""

    mean: float
    stderr: float
    episodes: int
    returns: list[float]
    video: Path | None = None


def train(
    algorithm: Algorithm = None,
    env: str | Callable | None = None,
    *,
    name: str | None = None,
    overwrite: bool = False,
    total_steps: int | None = None,
    seed: int | None = None,
    preset: str | None = "auto",
    topology: str | None = None,
    config: str | Path | None = None,
    deterministic: bool = False,
    set: Overrides = (),
    init_from: "str | Path | Run | None" = None,
    track: Sequence[str] = ("tensorboard",),
    root: str | Path = "runs",
    on_report: "OnReport | None" = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    metrics_port: int | None = None,
    on: str = "local",
    storage: str | None = None,
) -> Run:
    """Train, and return the run. `algorithm` may be a whole `podium.Experiment`, or a function that makes yours.

    `env` is an id, a Python path, or a callable that makes a Gymnasium, host or JAX environment.
    `topology` is an architecture by name: impala, seed, decoupled.
    `deterministic` makes two runs with one seed equal bit for bit: actors and learner take turns.
    `set` takes what `--set` takes: {"algorithm.learning_rate": 1e-3} or ["algorithm.learning_rate=1e-3"]; where that is
    a Python path, the function itself will do: {"network.factory": make_network, "env.wrappers": [wrap]}.
    `on_report` is called with each row of metrics.jsonl; if it returns False, the run stops.
    `callbacks` are objects of classes that extend `podium.Callback`: docs/callbacks.md.
    `metrics_port` serves the run's metrics to Prometheus.
    `on` is where its workers run: local, ray (a Ray cluster of this machine), or a cluster's HOST:PORT.
    `storage` is a URL where its files are kept as well: s3://bucket/runs, gs://..., file://...
    """
    from podium.launch.deployment import Deployment

    deployment = Deployment(on, storage)
    where = deterministic, deployment.is_cluster
    plan = _plan(algorithm, env, total_steps, seed, preset, topology, config, set, *where)
    from podium.launch import session

    source = None if init_from is None else _find(init_from, root)
    directory = session.train(
        plan,
        Path(root),
        name=name,
        overwrite=overwrite,
        init_from=source,
        track=track,
        on_report=on_report,
        callbacks=callbacks,
        progress=progress,
        metrics_port=metrics_port,
        deployment=deployment,
    )
    return Run(directory.path, _read_env(env)[1])


def train_seeds(algorithm: Algorithm, env: str | Callable | None = None, *, seeds: int, **options: Any) -> list[Run]:
    """The same experiment with seeds 0 to `seeds` - 1, one run after the other: NAME-seed0, NAME-seed1, ..."""
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ConfigError(f"seeds = {seeds!r}: must be how many, at least 1; seed=7 trains one run of that seed")
    name = options.pop("name", None)
    return [train(algorithm, env, name=name and f"{name}-seed{seed}", seed=seed, **options) for seed in range(seeds)]


def dry_run(
    algorithm: Algorithm = None,
    env: str | Callable | None = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    preset: str | None = "auto",
    topology: str | None = None,
    config: str | Path | None = None,
    deterministic: bool = False,
    set: Overrides = (),
) -> str:
    """What `train` would run: the resolved experiment as TOML, and the program. Starts nothing."""
    from podium.launch.plan import draw

    return draw(_plan(algorithm, env, total_steps, seed, preset, topology, config, set, deterministic))


def resume(
    run: str | Path | Run = "latest",
    *,
    root: str | Path = "runs",
    total_steps: int | None = None,
    wall_s: float | None = None,
    target_return: float | None = None,
    set: Overrides = (),
    on_report: "OnReport | None" = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    metrics_port: int | None = None,
    on: str | None = None,
    storage: str | None = None,
) -> Run:
    """Go on with a run from its newest checkpoint that can be read, or from its start if it has none yet.

    `total_steps`, `wall_s` and `target_return` move its limits, counted from its start; `math.inf` takes away either of
    the last two. `set` changes what may change: limits, evaluation, checkpoint, and traced hyper-parameters such as
    algorithm.learning_rate. `run` may be the URL of a run in storage: it is brought to `root` first. `on` and `storage`
    are as in `train`; left out, they are what they were.
    """
    from podium.launch.deployment import bring, is_stored, read_deployment

    directory = bring(str(run), Path(root)) if is_stored(run) else _find(run, root)
    before, factory = read_deployment(directory), _factory(run)
    deployment = replace(before, on=on or before.on, storage=storage or before.storage)
    experiment = settings.read_experiment(directory.experiment_toml)
    given = {"total_steps": total_steps, "wall_s": wall_s, "target_return": target_return}
    limits = {
        f"limits.{name}": None if value == math.inf else value for name, value in given.items() if value is not None
    }
    experiment = change_experiment(change_experiment(experiment, set), limits)
    from podium.launch import session
    from podium.launch.plan import make_plan

    plan = make_plan(experiment, factory, on_cluster=deployment.is_cluster)
    session.resume(
        plan,
        directory,
        on_report=on_report,
        callbacks=callbacks,
        progress=progress,
        metrics_port=metrics_port,
        deployment=deployment,
    )
    return Run(directory.path, factory)


def load(
    run: str | Path | Run = "latest",
    *,
    env: str | Callable | None = None,
    root: str | Path = "runs",
    best: bool = False,
) -> "Policy":
    """The policy of a run, to predict with: its newest checkpoint, or its best one.

    It needs no environment. `env` is one for `evaluate` to play in: an id, a Python path, or a callable that makes one,
    where the run was trained on a function that is not there any more.
    """
    from podium.launch.policy import load_policy

    env_id, factory = _read_env(env)
    return load_policy(_find(run, root), env_id, factory if env is not None else _factory(run), best)


def evaluate(
    policy: "str | Path | Run | Policy" = "latest",
    *,
    env: str | Callable | None = None,
    episodes: int = 10,
    deterministic: bool = True,
    video: bool = False,
    root: str | Path = "runs",
    seed: int = 1_000_003,
    best: bool = False,
) -> Evaluation:
    """Play episodes with frozen normalisation; `video` films the first one.

    `policy` is a run or what `load` gave; `env`, as in `load`, is played in place of the run's own. `deterministic`
    takes the most likely action; False draws actions as in training.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: must be at least 1")
    from podium.launch.evaluation import draw_without_a_screen, evaluate_policy, film
    from podium.launch.policy import Policy

    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: must be at least 1")
    if video:
        draw_without_a_screen()
    if not isinstance(policy, Policy):
        policy = load(policy, env=env, root=root, best=best)
    elif best:
        raise ConfigError(
            "best = True: goes with a run; a loaded policy is one checkpoint: podium.load(run, best=True)"
        )
    elif env is not None:
        policy = policy.in_env(*_read_env(env))
    if video:
        policy.directory.require_writable("videos")
    # Filmed first: what cannot be drawn is told before many episodes are played.
    path = film(policy, policy.directory, seed, deterministic=deterministic) if video else None
    played = evaluate_policy(policy, episodes, seed, deterministic)
    return Evaluation(played.mean, played.stderr, len(played.returns), played.returns, path)


def _plan(
    algorithm: Algorithm,
    env: str | Callable | None,
    total_steps: int | None,
    seed: int | None,
    preset: str | None,
    topology: str | None,
    config: str | Path | None,
    overrides: Overrides,
    deterministic: bool,
    on_cluster: bool = False,
) -> "Plan":
    env_id, factory = _read_env(env)
    if callable(algorithm):
        algorithm = find_path(algorithm, "algorithm")
    if isinstance(algorithm, Experiment):
        algorithm = settings.Resolved(algorithm, (), None, {})
    if isinstance(algorithm, settings.Resolved):
        if config is not None or overrides or topology is not None:
            raise ConfigError("config, topology and set go with a name: an Experiment is complete, so change it")
        experiment = algorithm.experiment
        if seed is not None:
            experiment = replace(experiment, seed=seed)
        if env is not None:
            experiment = replace(experiment, env=replace(experiment.env, id=env_id))
        if total_steps is not None:
            experiment = replace(experiment, limits=replace(experiment.limits, total_steps=total_steps))
        if deterministic:
            experiment = settings.make_deterministic(experiment)
        resolved = replace(algorithm, experiment=experiment)
    else:
        resolved = settings.resolve(
            algorithm,
            env_id,
            preset=preset,
            topology=topology,
            config=config,
            overrides=_name_callables(overrides),
            total_steps=total_steps,
            seed=seed,
            deterministic=deterministic,
        )
    from podium.launch.plan import make_plan

    return make_plan(resolved.experiment, factory, resolved.notes, on_cluster=on_cluster)


def _read_env(env: Any) -> tuple[str | None, Callable | None]:
    """The environment's name, and what makes it where that is a callable or an object of Gymnasium.

    A callable goes by its Python path, so that `podium eval` can find it again where it is importable.
    """
    if env is None or isinstance(env, str):
        return env, None
    if callable(env) and not hasattr(env, "observation_space"):
        return f"{env.__module__}:{getattr(env, '__qualname__', type(env).__name__)}", env
    if isinstance(env, type):
        return f"{env.__module__}:{env.__qualname__}", env
    from podium.envs.instances import read_instance

    return read_instance(env)


def _name_callables(overrides: Any, field: str = "set") -> Any:
    """Settings with the Python path in the place of each function."""
    if isinstance(overrides, Mapping):
        return {name: _name_callables(value, str(name)) for name, value in overrides.items()}
    if isinstance(overrides, list | tuple):
        return [_name_callables(value, field) for value in overrides]
    return find_path(overrides, field) if callable(overrides) else overrides


def _factory(run: str | Path | Run) -> Callable | None:
    return run.env_factory if isinstance(run, Run) else None


def _find(run: str | Path | Run, root: str | Path) -> RunDirectory:
    return find_run(run.path if isinstance(run, Run) else run, Path(root))
