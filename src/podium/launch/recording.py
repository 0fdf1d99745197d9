"""Where a run begins, and everything that is written down around its training: metrics, checkpoints, summary."""

import threading
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from podium.core import toml
from podium.core.algorithm_configs import AlgorithmConfig
from podium.core.config import Experiment
from podium.core.errors import CheckpointError, ConfigError, EnvError
from podium.core.types import Tree
from podium.launch import training
from podium.launch.env_slots import find_env_snapshots
from podium.launch.plan import Plan
from podium.launch.restore import restore
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory, root_flag
from podium.runs.full_disk import full_disk_told
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.outcomes import Outcomes
from podium.runs.progress import Progress
from podium.runs.recorder import Counts, OnReport, Recorder, limit_reached
from podium.runs.summary import Samples, Status, Summary, read_summary, write_summary
from podium.runs.trackers import used_trackers

STARTED_FROM = "started from the training state of "


@dataclass(frozen=True)
class Beginning:
    """The training state to go on from, what was counted up to it, and lines to print about it."""

    state: Tree
    """Of shapes alone in a process that does not learn."""
    counts: Counts
    track: Sequence[str]
    notes: tuple[str, ...]


def begin(plan: Plan, init_from: RunDirectory | None, track: Sequence[str], learns: bool = True) -> Beginning:
    """At the start, or at another run's parameters.

    The launcher of processes does not learn: it asks whether its learner could begin, and has no memory for a second
    replay buffer.
    """
    state = training.compile_initial_state(plan) if learns else jax.eval_shape(partial(training.initial_state, plan))
    notes = []
    if init_from is not None:
        state["train"] = adopt(state["train"], init_from, plan.experiment.algorithm, learns)
        notes.append(f"{STARTED_FROM}{init_from.name}")
    return Beginning(state, Counts(notes=notes), track, tuple(notes))


def begin_again(plan: Plan, directory: RunDirectory, learns: bool = True) -> Beginning:
    """At the newest checkpoint that is whole; at the start, if none was written yet."""
    if not Checkpoints(directory.checkpoints).updates():
        return begin_anew(plan, directory, learns)
    template = checkpoint_template(plan)
    try:
        restored = restore(directory, template, read=learns)
    except CheckpointError:
        if template.pop("env_snapshots", None) is None:
            raise
        restored = restore(directory, template, read=learns)  # of a Podium that did not keep them yet
    if learns:
        restored.tree["train"] = set_hyper(restored.tree["train"], plan.experiment)
    counts = Counts(**restored.metadata)
    counts.notes += restored.notes
    if plan.in_one_process:
        book_what_is_lost(counts, directory)
    said = f"going on from checkpoint {restored.update}, at {counts.env_steps:,} steps"
    if is_over(plan, counts):
        said = f"checkpoint {restored.update} is the last one: nothing is left to train"
        return Beginning(restored.tree, counts, used_trackers(directory.path), (said,))
    if plan.replay_workers:
        counts.notes.append(f"resumed at update {counts.updates}: the replay workers began empty")
    if plan.mode != "fused" and "env_snapshots" not in template:
        counts.notes.append(f"resumed at update {counts.updates}: the environments began new episodes")
    return Beginning(restored.tree, counts, used_trackers(directory.path), (said,))


def is_over(plan: Plan, counts: Counts) -> bool:
    """Whether these counts have reached one of the run's limits."""
    return limit_reached(plan.experiment.limits, counts, counts.last_returns) is not None


def checkpoint_template(plan: Plan) -> dict[str, Tree]:
    """What a checkpoint of this plan holds, in shape: the training state, and where environments are that can tell."""
    state, snapshots = jax.eval_shape(lambda: training.initial_state(plan)), find_env_snapshots(plan)
    return state if snapshots is None else state | {"env_snapshots": snapshots}


def begin_anew(plan: Plan, directory: RunDirectory, learns: bool) -> Beginning:
    """At the start of a run that ended before its first checkpoint: with its seed, it is the same run again."""
    summary = read_summary(directory.path) or {}
    before, root = summary.get("notes", ()), root_flag(directory.path.parent)
    if source := next((note.removeprefix(STARTED_FROM) for note in before if note.startswith(STARTED_FROM)), None):
        again = f"podium train --config {directory.experiment_toml} --init-from {source}{root}"
        raise ConfigError(f"run {directory.name} has no checkpoint, and began from another run: start it by `{again}`")
    if (status := summary.get("status")) in ("done", "stopped"):
        again = f"podium train --config {directory.experiment_toml}{root}"
        raise ConfigError(
            f"run {directory.name} is {status}, and its checkpoints are gone: it cannot go on; `{again}` trains it anew"
        )
    fresh = begin(plan, None, used_trackers(directory.path), learns)
    note = "there was no checkpoint yet, so the run began again from its start"
    fresh.counts.notes.append(note)
    if plan.in_one_process:
        book_what_is_lost(fresh.counts, directory)
    return replace(fresh, notes=(note,))


def record(
    plan: Plan,
    directory: RunDirectory,
    beginning: Beginning,
    bar: Progress,
    interrupt: threading.Event,
    on_report: OnReport | None,
    run: Callable[[Recorder], None],
) -> None:
    """Call `run` with a recorder, and keep the run directory true whatever comes of it."""
    experiment, counts, outcomes = plan.experiment, beginning.counts, Outcomes(plan.env.spec.metrics)
    with (
        full_disk_told(directory),
        Checkpoints(directory.checkpoints, experiment.checkpoint.keep) as checkpoints,
        MetricsLog(directory.path, beginning.track, _plain(experiment), counts.updates) as log,
    ):
        recorder = Recorder(experiment, log, bar, checkpoints, counts, interrupt, on_report, outcomes)
        write_summary(directory.path, summarize(plan, recorder, "running"))
        try:
            run(recorder)
            checkpoints.wait()
        except BaseException as error:
            # Environments that a signal to the whole group ended while they were starting.
            by_user = isinstance(error, KeyboardInterrupt) or (isinstance(error, EnvError) and interrupt.is_set())
            write_summary(directory.path, summarize(plan, recorder, "interrupted" if by_user else "failed"))
            if by_user:
                raise KeyboardInterrupt from error
            raise
    assert recorder.ended is not None
    write_summary(directory.path, summarize(plan, recorder, recorder.ended))


def summarize(plan: Plan, recorder: Recorder, status: Status) -> Summary:
    """What the recorder knows."""
    counts = recorder.counts
    return Summary(
        status=status,
        limit=recorder.limit if status == "done" else None,
        env_steps=counts.env_steps,
        updates=counts.updates,
        wall_s=round(counts.wall_s, 3),
        compile_s=round(counts.compile_s, 3),
        steps_per_s=recorder.steps_per_s(),
        episode_return=recorder.episode_return(),
        samples=recorder.samples(),
        staleness=recorder.staleness(),
        restarts={},
        mode=plan.mode,
        env_library=plan.env.library,
        seed=plan.experiment.seed,
        notes=(*counts.notes, *recorder.outcomes.notes()),
    )


def adopt(train: Tree, source: RunDirectory, config: AlgorithmConfig, read: bool = True) -> Tree:
    """Another run's training state, but with this run's hyper-parameters and its schedule from the start."""
    try:
        adopted = restore(source, train, part="train", read=read).tree
    except CheckpointError as error:
        raise ConfigError(f"--init-from {source.name}: {error}") from None
    is_hyper = config.is_hyper
    if config.HYPER and not any(map(is_hyper, jax.tree.leaves(train, is_leaf=is_hyper))):
        lacks = f"the training state of {config.name} does not hold the dict `hyper` that its init was given"
        right = "keep it there, or say HYPER = () if all settings come from the configuration"
        raise ConfigError(f"--init-from {source.name}: {lacks}, so this run's could not take its place; {right}")
    adopted = jax.tree.map(lambda own, other: own if is_hyper(own) else other, train, adopted, is_leaf=is_hyper)
    return _restart(train, adopted)


def _restart(fresh: Tree, adopted: Tree) -> Tree:
    """The adopted state with what schedules count in as it is at a run's start, in wrapped states too."""
    fields = getattr(fresh, "_fields", ())
    if "steps" in fields:
        adopted = adopted._replace(steps=fresh.steps)
    return adopted._replace(train=_restart(fresh.train, adopted.train)) if "train" in fields else adopted


def set_hyper(train: Tree, experiment: Experiment) -> Tree:
    """The training state with the experiment's numbers, not those of its checkpoint: a run may go on for longer."""
    hyper, is_hyper = experiment.hyper(), experiment.algorithm.is_hyper

    def change(node: Any) -> Any:
        return {name: np.asarray(hyper[name], node[name].dtype) for name in node} if is_hyper(node) else node

    return jax.tree.map(change, train, is_leaf=is_hyper)


def book_what_is_lost(counts: Counts, directory: RunDirectory) -> None:
    """Steps after the checkpoint are undone; those that waited for the learner when it ended are lost.

    The summary has the account as they were when the last process began (if it was killed) or ended.
    """
    summary, rows = read_summary(directory.path), read_metrics(directory.path)
    before = Samples() if summary is None else Samples(**{k: summary["samples"][k] for k in asdict(Samples())})
    trained = max(counts.env_steps, int(rows[-1]["step"]) if rows else 0)
    counts.produced = before.produced + trained - before.trained
    counts.stale = before.stale
    counts.lost = before.lost + before.in_flight
    counts.undone = before.undone + trained - counts.env_steps


def _plain(experiment: Experiment) -> dict[str, Any]:
    """The experiment as nested dicts, for trackers."""
    return tomllib.loads(toml.dump(experiment))
