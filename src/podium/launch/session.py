"""A run from its directory's creation to its summary, fresh or resumed."""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from podium.core import toml
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.types import Tree
from podium.launch import training
from podium.launch.devices import configure
from podium.launch.evaluation import EVALUATION_SEED, evaluate_params
from podium.launch.plan import Plan
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.plot import plot_run
from podium.runs.progress import Progress
from podium.runs.recorder import Counts, OnReport, Recorder
from podium.runs.summary import Samples, Status, Summary, read_summary, write_summary


def stem(experiment: Experiment) -> str:
    """What a run without a name is called after: `ppo-CartPole-v1`."""
    return re.sub(r"[^\w.-]+", "-", f"{experiment.algorithm.name}-{experiment.env.id}")


def create(plan: Plan, root: Path, name: str | None, overwrite: bool) -> RunDirectory:
    """A new run directory with its experiment.toml."""
    directory = RunDirectory.create(root, name, stem(plan.experiment), overwrite)
    directory.experiment_toml.write_text(toml.dump(plan.experiment), encoding="utf-8")
    return directory


def train(
    plan: Plan,
    directory: RunDirectory,
    *,
    init_from: RunDirectory | None = None,
    track: Sequence[str] = ("tensorboard",),
    on_report: OnReport | None = None,
    progress: bool = True,
) -> None:
    """Train from the start, or from another run's parameters."""
    configure()
    state = jax.jit(lambda: training.initial_state(plan))()
    notes = []
    if init_from is not None:
        state["train"] = adopt(state["train"], init_from)
        notes.append(f"started from the training state of {init_from.name}")
    _run(plan, directory, state, Counts(notes=notes), track, on_report, progress)


def resume(
    plan: Plan,
    directory: RunDirectory,
    *,
    on_report: OnReport | None = None,
    progress: bool = True,
) -> None:
    """Go on from the newest checkpoint that is whole."""
    configure()
    directory.require_writable()
    template = jax.eval_shape(lambda: training.initial_state(plan))
    restored = Checkpoints(directory.checkpoints).restore(template)
    for note in restored.notes:
        print(f"warning: {note}; going on from checkpoint {restored.update}", file=sys.stderr)
    counts = Counts(**restored.metadata)
    if counts.env_steps >= plan.experiment.limits.total_steps:
        raise ConfigError(f"run {directory.name} has done its {counts.env_steps:,} steps: give more with --total-steps")
    _book_what_is_lost(counts, directory)
    if plan.mode != "fused":
        note = f"resumed at update {counts.updates}: the environments began new episodes"
        counts.notes.append(note)
    directory.experiment_toml.write_text(toml.dump(plan.experiment), encoding="utf-8")
    track = ("tensorboard",) if directory.tensorboard.exists() else ()
    _run(plan, directory, restored.tree, counts, track, on_report, progress, resumed=True)


def adopt(train: Tree, source: RunDirectory) -> Tree:
    """Another run's training state, but with this run's hyper-parameters and its schedule from the start."""
    adopted = Checkpoints(source.checkpoints).restore(train, part="train").tree
    own = {name: getattr(train, name) for name in ("hyper", "updates") if name in getattr(train, "_fields", ())}
    return adopted._replace(**own) if own else adopted


def _book_what_is_lost(counts: Counts, directory: RunDirectory) -> None:
    """Steps after the checkpoint are undone; those that waited for the learner when it ended are lost."""
    rows = read_metrics(directory.path)
    undone = max(0, int(rows[-1]["step"]) - counts.env_steps) if rows else 0
    ended = read_summary(directory.path)
    lost = ended["samples"]["in_flight"] if ended and ended["updates"] == counts.updates else 0
    counts.undone += undone
    counts.lost += lost
    counts.produced += undone + lost


def _run(
    plan: Plan,
    directory: RunDirectory,
    state: Tree,
    counts: Counts,
    track: Sequence[str],
    on_report: OnReport | None,
    progress: bool,
    resumed: bool = False,
) -> None:
    experiment = plan.experiment
    with (
        Progress(experiment.limits.total_steps, progress) as bar,
        Checkpoints(directory.checkpoints, experiment.checkpoint.keep) as checkpoints,
        MetricsLog(directory.path, track, _plain(experiment), counts.updates if resumed else None) as log,
    ):
        for note in plan.notes:
            bar.say(note)
        bar.say(f"run {directory.path}")
        recorder = Recorder(experiment, log, bar, checkpoints, counts, on_report)
        try:
            ended = training.run(plan, recorder, bar, state)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            write_summary(directory.path, _summary(plan, recorder, status, recorder.samples(0, 0), None))
            raise
        status = recorder.ended
        assert status is not None
        checkpoints.wait()
        score = _evaluate(plan, ended.train) if status == "done" and experiment.evaluation.episodes else None
        write_summary(directory.path, _summary(plan, recorder, status, ended.samples, score))
        log.flush()
        plot_run(directory.path)
    if status == "interrupted":
        raise KeyboardInterrupt


def _evaluate(plan: Plan, train: Tree) -> float:
    """Mean return of greedy episodes with the final parameters."""
    params = plan.algorithm.params(train)
    return evaluate_params(
        plan, params, plan.experiment.evaluation.episodes, plan.experiment.seed + EVALUATION_SEED
    ).mean


def _summary(plan: Plan, recorder: Recorder, status: Status, samples: Samples, score: float | None) -> Summary:
    counts = recorder.counts
    return Summary(
        status=status,
        env_steps=counts.env_steps,
        updates=counts.updates,
        wall_s=round(counts.wall_s, 3),
        compile_s=round(counts.compile_s, 3),
        steps_per_s=recorder.steps_per_s(),
        episode_return=recorder.episode_return(),
        eval_return=score,
        samples=samples,
        staleness=recorder.staleness(),
        restarts={},
        mode=plan.mode,
        env_library=plan.env.library,
        seed=plan.experiment.seed,
        notes=tuple(counts.notes),
    )


def _plain(experiment: Experiment) -> dict[str, Any]:
    """The experiment as nested dicts, for trackers."""
    return tomllib.loads(toml.dump(experiment))
