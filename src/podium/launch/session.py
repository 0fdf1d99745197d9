"""A run from its directory's creation to its summary, fresh or resumed, in this process or in many."""

import math
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax

from podium.core import toml
from podium.core.callback import Callback
from podium.core.config import Experiment
from podium.core.errors import ConfigError, EndlessEpisodeError, EnvError
from podium.core.files import write_whole
from podium.core.settings import read_experiment
from podium.envs.spec_file import dump_spec
from podium.launch import distributed, training
from podium.launch.calibration import settle
from podium.launch.callbacks import Calls, check_callbacks
from podium.launch.deployment import HERE, Deployment
from podium.launch.evaluation import EVALUATION_SEED, evaluate_params
from podium.launch.interrupts import interruptible
from podium.launch.live_metrics import exposed
from podium.launch.plan import Plan
from podium.launch.recording import Beginning, begin, begin_again, is_over, record
from podium.launch.restore import restore
from podium.orchestrator.backends import choose_back_end
from podium.runs.accounting import next_incarnation, tally
from podium.runs.directory import RunDirectory, require_free, stem
from podium.runs.full_disk import full_disk_told
from podium.runs.metrics import cut_tail
from podium.runs.mirror import END, START, fetch_checkpoint, fetch_files, mirrored
from podium.runs.plot import plot_run
from podium.runs.progress import Progress, announce
from podium.runs.recorder import Counts, OnReport, Recorder, limit_reached
from podium.runs.restarts import describe_restarts
from podium.runs.results import describe_result
from podium.runs.storage import Storage
from podium.runs.summary import amend_summary, read_summary
from podium.runs.trackers import require_trackers


def train(
    plan: Plan,
    root: Path,
    *,
    name: str | None = None,
    overwrite: bool = False,
    init_from: RunDirectory | None = None,
    track: Sequence[str] = ("tensorboard",),
    on_report: OnReport | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    metrics_port: int | None = None,
    deployment: Deployment = HERE,
) -> RunDirectory:
    """Train from the start, or from another run's parameters, in a new run directory.

    The directory is made last: what cannot start leaves nothing behind, and overwrites nothing.
    """
    require_trackers(track)
    require_free(root, name, overwrite)
    choose_back_end(deployment.on)
    if deployment.storage is not None:
        Storage(deployment.storage).probe()
    if progress:
        measures = "" if plan.asked is None else ": measuring where its parts run best"
        announce(f"preparing {plan.experiment.algorithm.name} on {plan.experiment.env.id}{measures}")
    plan = settle(plan)
    check_callbacks(callbacks, plan)
    beginning = begin(plan, init_from, track, learns=plan.in_one_process)
    directory = RunDirectory.create(root, name, stem(plan.experiment), overwrite)
    with directory.hold(), full_disk_told(directory), _resumable(directory, progress):
        write_whole(directory.env_json, dump_spec(plan.env.spec, plan.env.codec))
        _write_experiment(directory, plan.experiment)
        _store_start(directory, deployment)
        _run(plan, directory, beginning, init_from, on_report, callbacks, progress, metrics_port, deployment)
    return directory


def _store_start(directory: RunDirectory, deployment: Deployment) -> None:
    """Record where the run is, and let it be found in storage from its first moment."""
    if deployment != HERE:
        deployment.write(directory)
    _store(directory, deployment, START)


def _store(directory: RunDirectory, deployment: Deployment, names: Sequence[str]) -> None:
    if (storage := deployment.open_storage(directory.name)) is not None:
        for name in names:
            if (directory.path / name).exists():
                storage.upload(directory.path / name, name)


def resume(
    plan: Plan,
    directory: RunDirectory,
    *,
    on_report: OnReport | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    metrics_port: int | None = None,
    deployment: Deployment = HERE,
) -> None:
    """Go on from the newest checkpoint that is whole, or from the start where there is none yet."""
    check_callbacks(callbacks, plan)
    choose_back_end(deployment.on)
    directory.require_writable()
    with directory.hold(), full_disk_told(directory), _resumable(directory, progress):
        with directory.write_alone():
            pass  # if the launcher of before was killed, its learner writes a last checkpoint
        if deployment.is_cluster and (storage := deployment.open_storage(directory.name)) is not None:
            fetch_files(storage, directory)
            fetch_checkpoint(storage, directory)
        beginning = begin_again(plan, directory, learns=plan.in_one_process)
        limits_before = read_experiment(directory.experiment_toml).limits
        if plan.experiment.limits != limits_before or not _lacks_its_end(plan, directory):
            _refuse_ended(plan, directory, beginning.counts)
        if not plan.in_one_process:
            cut_tail(directory.metrics, beginning.counts.updates)  # the learner would, but we follow the file before
        _write_experiment(directory, plan.experiment)
        _store_start(directory, deployment)
        _run(plan, directory, beginning, None, on_report, callbacks, progress, metrics_port, deployment)


def _lacks_its_end(plan: Plan, directory: RunDirectory) -> bool:
    """Whether a run was ended between its last checkpoint and the last line of its summary."""
    summary = read_summary(directory.path) or {}
    unplayed = plan.experiment.evaluation.episodes > 0 and summary.get("eval_return") is None
    return summary.get("status") != "done" or unplayed


def _refuse_ended(plan: Plan, directory: RunDirectory, counts: Counts) -> None:
    """It would end again after one update."""
    limits = plan.experiment.limits
    match limit_reached(limits, counts, counts.last_returns):
        case "total_steps":
            raise ConfigError(
                f"run {directory.name} has done {counts.env_steps:,} steps, and its end is at "
                f"{limits.total_steps:,}: give more with --total-steps"
            )
        case "wall_s":
            over = f"run {directory.name} has trained for {counts.wall_s:.1f} s, and its end is at {limits.wall_s:g} s"
            raise ConfigError(f"{over}: give more with --wall-s, counted from its start, or --wall-s none")
        case "target_return":
            over = f"run {directory.name} has reached its return of {limits.target_return:g}"
            raise ConfigError(f"{over}: give a higher one with --target-return, or --target-return none")


@contextmanager
def _resumable(directory: RunDirectory, progress: bool) -> Iterator[None]:
    """Tell how a run that is interrupted goes on."""
    try:
        yield
    except KeyboardInterrupt:
        line = f"`podium resume {directory.argument}` goes on"
        Progress(1, enabled=False, log=directory.log).log(line)
        if progress:
            announce(line)
        raise


def _write_experiment(directory: RunDirectory, experiment: Experiment) -> None:
    """Only where it changes: its time is the run's start."""
    text, path = toml.dump(experiment), directory.experiment_toml
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text)


def _run(
    plan: Plan,
    directory: RunDirectory,
    beginning: Beginning,
    init_from: RunDirectory | None,
    on_report: OnReport | None,
    callbacks: Sequence[Callback],
    progress: bool,
    metrics_port: int | None,
    deployment: Deployment,
) -> None:
    calls = Calls(callbacks, plan, directory)
    try:
        _run_called(plan, directory, beginning, init_from, on_report, calls, progress, metrics_port, deployment)
    finally:
        calls.end(read_summary(directory.path) or {})
        _store(directory, deployment, END)


def _run_called(
    plan: Plan,
    directory: RunDirectory,
    beginning: Beginning,
    init_from: RunDirectory | None,
    on_report: OnReport | None,
    calls: Calls,
    progress: bool,
    metrics_port: int | None,
    deployment: Deployment,
) -> None:
    limits = plan.experiment.limits
    with Progress(limits.total_steps, progress, directory.log, limits.wall_s) as bar:
        bar.log(f"$ {_command_line()}    (in {Path.cwd()})")
        with (
            interruptible(bar, partial(_leave, directory)) as interrupt,
            exposed(metrics_port, directory.name, bar) as metrics,
        ):
            for note in (*plan.notes, *beginning.notes, f"run {directory.path}"):
                bar.say(note)
            kept = metrics.watched_by(on_report)

            def watch(row: dict[str, Any]) -> object:
                goes_on = calls.follow(row)
                return kept(row) if goes_on else False

            calls.start()
            if is_over(plan, beginning.counts):
                _close_account(plan, directory, beginning, bar, interrupt)
            elif plan.in_one_process:

                def run(recorder: Recorder) -> None:
                    training.run(plan, recorder, bar, beginning.state, calls.attach)

                with mirrored(deployment.open_storage(directory.name), directory):
                    record(plan, directory, beginning, bar, interrupt, watch, run)
            else:
                distributed.run(plan, directory, beginning, init_from, bar, interrupt, watch, metrics, deployment)
        _finish(plan, directory, bar)


def _leave(directory: RunDirectory) -> None:
    """The last that a process does which cannot wait for its update."""
    amend_summary(directory.path, status="interrupted")


def _close_account(
    plan: Plan, directory: RunDirectory, beginning: Beginning, bar: Progress, interrupt: threading.Event
) -> None:
    """Of a run that was ended after its last checkpoint: nothing is left to train."""
    if (read_summary(directory.path) or {}).get("status") == "done":
        return

    def end(recorder: Recorder) -> None:
        if not plan.in_one_process:
            since = next_incarnation(directory.accounting)
            recorder.tally = lambda: tally(directory.accounting, since)
        recorder.ended = "done"
        recorder.limit = limit_reached(plan.experiment.limits, recorder.counts, recorder.counts.last_returns)

    record(plan, directory, beginning, bar, interrupt, None, end)


def _command_line() -> str:
    """What started this process, as it was typed."""
    program, *arguments = sys.argv
    name = "podium" if Path(program).name in ("podium", "__main__.py") else program or "python"
    return shlex.join([name, *arguments])


def _finish(plan: Plan, directory: RunDirectory, bar: Progress) -> None:
    """What comes after the last update: greedy episodes if the run reached its end, the curve, and the result."""
    summary = read_summary(directory.path) or {}
    try:
        if summary["status"] == "done" and plan.experiment.evaluation.episodes:
            _evaluate(plan, directory, bar)
    finally:
        if summary["episode_return"]["n"]:
            plot_run(directory.path)
    if restarts := describe_restarts(summary):
        bar.log(restarts)
    bar.log(f"{summary['status']}: {describe_result(read_summary(directory.path) or {})}")
    if summary["status"] == "interrupted":
        raise KeyboardInterrupt


def _evaluate(plan: Plan, directory: RunDirectory, bar: Progress) -> None:
    """Play greedy episodes with the last parameters, and put their returns into the summary."""
    episodes = plan.experiment.evaluation.episodes
    bar.say(f"evaluating: {episodes} greedy episode(s)")
    template = jax.eval_shape(lambda: training.initial_state(plan))["train"]
    params = plan.algorithm.params(restore(directory, template, part="train").tree)
    seed = (plan.experiment.seed + EVALUATION_SEED) % 2**32
    try:
        played = evaluate_params(plan, params, episodes, seed)
    except EndlessEpisodeError as error:
        return note_that(directory, f"not evaluated: {error}", bar)
    except EnvError:
        amend_summary(directory.path, status="failed")
        raise
    std = played.stderr * math.sqrt(episodes) if episodes > 1 else None
    amend_summary(directory.path, eval_return=played.mean, eval_std=std, eval_episodes=episodes)


def note_that(directory: RunDirectory, note: str, bar: Progress) -> None:
    """Warn of something that does not end a run, and keep it in the summary."""
    bar.say(f"warning: {note}")
    notes = (read_summary(directory.path) or {}).get("notes", [])
    amend_summary(directory.path, notes=[*(other for other in notes if other != note), note])
