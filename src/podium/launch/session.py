"""A run from its directory's creation to its summary, fresh or resumed."""

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from podium.core import toml
from podium.core.config import Experiment
from podium.core.errors import CheckpointError, ConfigError, EnvError
from podium.core.types import Tree
from podium.launch import training
from podium.launch.evaluation import EVALUATION_SEED, evaluate_params
from podium.launch.plan import Plan
from podium.launch.restore import restore
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.plot import plot_run
from podium.runs.progress import Progress
from podium.runs.recorder import Counts, OnReport, Recorder
from podium.runs.summary import Samples, Status, Summary, read_summary, write_summary
from podium.runs.trackers import require_trackers


def stem(experiment: Experiment) -> str:
    """What a run without a name is called after: `ppo-CartPole-v1`."""
    return re.sub(r"[^\w.-]+", "-", f"{experiment.algorithm.name}-{experiment.env.id}")


def train(
    plan: Plan,
    root: Path,
    *,
    name: str | None = None,
    overwrite: bool = False,
    init_from: RunDirectory | None = None,
    track: Sequence[str] = ("tensorboard",),
    on_report: OnReport | None = None,
    progress: bool = True,
) -> RunDirectory:
    """Train from the start, or from another run's parameters, in a new run directory.

    The directory is made last: what cannot start leaves nothing behind, and overwrites nothing.
    """
    require_trackers(track)
    state = jax.jit(lambda: training.initial_state(plan))()
    notes = []
    if init_from is not None:
        state["train"] = adopt(state["train"], init_from)
        notes.append(f"started from the training state of {init_from.name}")
    directory = RunDirectory.create(root, name, stem(plan.experiment), overwrite)
    with directory.hold():
        _write_experiment(directory, plan.experiment)
        _run(plan, directory, state, Counts(notes=notes), track, on_report, progress)
    return directory


def resume(
    plan: Plan,
    directory: RunDirectory,
    *,
    on_report: OnReport | None = None,
    progress: bool = True,
) -> None:
    """Go on from the newest checkpoint that is whole."""
    directory.require_writable()
    with directory.hold():
        _resume(plan, directory, on_report, progress)


def _resume(plan: Plan, directory: RunDirectory, on_report: OnReport | None, progress: bool) -> None:
    template = jax.eval_shape(lambda: training.initial_state(plan))
    restored = restore(directory, template)
    counts = Counts(**restored.metadata)
    counts.notes += restored.notes
    if counts.env_steps >= plan.experiment.limits.total_steps:
        raise ConfigError(f"run {directory.name} has done its {counts.env_steps:,} steps: give more with --total-steps")
    _book_what_is_lost(counts, directory)
    if plan.mode != "fused":
        counts.notes.append(f"resumed at update {counts.updates}: the environments began new episodes")
    _write_experiment(directory, plan.experiment)
    track = ("tensorboard",) if directory.tensorboard.exists() else ()
    _run(plan, directory, restored.tree, counts, track, on_report, progress, resumed=True)


def adopt(train: Tree, source: RunDirectory) -> Tree:
    """Another run's training state, but with this run's hyper-parameters and its schedule from the start."""
    try:
        adopted = restore(source, train, part="train").tree
    except CheckpointError as error:
        raise ConfigError(f"--init-from {source.name}: {error}") from None
    own = {name: getattr(train, name) for name in ("hyper", "steps") if name in getattr(train, "_fields", ())}
    return adopted._replace(**own) if own else adopted


def _write_experiment(directory: RunDirectory, experiment: Experiment) -> None:
    """Whole or not at all, and only where it changes: its time is the run's start."""
    text, path = toml.dump(experiment), directory.experiment_toml
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _book_what_is_lost(counts: Counts, directory: RunDirectory) -> None:
    """Steps after the checkpoint are undone; those that waited for the learner when it ended are lost.

    The summary has the books as they were when the last process began (if it was killed) or ended.
    """
    summary, rows = read_summary(directory.path), read_metrics(directory.path)
    before = Samples() if summary is None else Samples(**{k: summary["samples"][k] for k in asdict(Samples())})
    trained = max(counts.env_steps, int(rows[-1]["step"]) if rows else 0)
    counts.produced = before.produced + trained - before.trained
    counts.lost = before.lost + before.in_flight
    counts.undone = before.undone + trained - counts.env_steps


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
    with Progress(experiment.limits.total_steps, progress) as bar:
        with (
            training.interruptible(bar) as interrupt,
            Checkpoints(directory.checkpoints, experiment.checkpoint.keep) as checkpoints,
            MetricsLog(directory.path, track, _plain(experiment), counts.updates if resumed else None) as log,
        ):
            for note in (*plan.notes, f"run {directory.path}"):
                bar.say(note)
            recorder = Recorder(experiment, log, bar, checkpoints, counts, interrupt, on_report)
            write_summary(directory.path, _summary(plan, recorder, "running"))
            try:
                train = training.run(plan, recorder, bar, state)
                checkpoints.wait()
            except BaseException as error:
                # Environments that a signal to the whole group ended while they were starting.
                by_user = isinstance(error, KeyboardInterrupt) or (isinstance(error, EnvError) and interrupt.is_set())
                write_summary(directory.path, _summary(plan, recorder, "interrupted" if by_user else "failed"))
                if by_user:
                    raise KeyboardInterrupt from error
                raise
        status = recorder.ended
        assert status is not None
        write_summary(directory.path, _summary(plan, recorder, status))
        if recorder.episode_return().n:
            plot_run(directory.path)
        if status == "interrupted":
            raise KeyboardInterrupt
        if status == "done" and experiment.evaluation.episodes:
            bar.say(f"evaluating: {experiment.evaluation.episodes} greedy episode(s)")
            write_summary(directory.path, _summary(plan, recorder, status, _evaluate(plan, train)))


def _evaluate(plan: Plan, train: Tree) -> float:
    """Mean return of greedy episodes with the final parameters."""
    params = plan.algorithm.params(train)
    return evaluate_params(
        plan, params, plan.experiment.evaluation.episodes, (plan.experiment.seed + EVALUATION_SEED) % 2**32
    ).mean


def _summary(plan: Plan, recorder: Recorder, status: Status, score: float | None = None) -> Summary:
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
        samples=recorder.samples(),
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
