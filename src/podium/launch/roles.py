"""What each process of a run does: builds its worker from the plan that the launcher made, announces it, and runs it.

These are the entries that a program names. A worker chooses nothing: the experiment in its payload is complete, so that
one that is started again, or elsewhere, is the same.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from podium.algorithms.algorithm import Individuals
from podium.core import settings
from podium.core.config import Experiment
from podium.core.imports import load_path
from podium.core.transports import TRANSPORTS
from podium.launch import recording, training
from podium.launch.builders import Site, build_actor, build_inference, build_learner, build_replay
from podium.launch.callbacks import LoggedMetrics
from podium.launch.evaluation import draw_without_a_screen, play_versions
from podium.launch.heartbeat import Beat, WorkerMetrics
from podium.launch.plan import Plan, rebuild_plan
from podium.launch.program import make_program
from podium.launch.waiting import DATA_LIMIT_S, wait_for, wait_for_data
from podium.launch.watchdog import Watchdog
from podium.launch.wiring import Wiring
from podium.orchestrator.worker import WorkerContext
from podium.protocol.schema import SenderId
from podium.protocol.streams import Transport, TransportPlace
from podium.runs.accounting import tally
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.mirror import Mirror, NoMirror, fetch_checkpoint, fetch_files
from podium.runs.progress import Progress
from podium.runs.recorder import Recorder
from podium.runs.storage import Storage
from podium.runs.summary import Samples
from podium.workers.actor import Actor
from podium.workers.individual_actor import IndividualActor
from podium.workers.inference import InferenceWorker
from podium.workers.layout import make_layouts
from podium.workers.replay import ReplayWorker
from podium.workers.replay_learner import ReplayLearner


def actor(context: WorkerContext) -> None:
    """Step this actor's share of the environments."""
    _run(context, build_actor)


def inference(context: WorkerContext) -> None:
    """Choose actions for all actors that ask."""
    _run(context, build_inference)


def replay(context: WorkerContext) -> None:
    """Keep this shard of the replay buffer."""
    _run(context, build_replay)


def evaluator(context: WorkerContext) -> None:
    """Play greedy episodes with the newest version, again and again."""
    draw_without_a_screen()
    with _site(context) as (site, watchdog):
        reader = site.wiring.read_parameters()
        context.membership.announce({})
        reconnect_to_learner = site.reconnect()

        def reconnect() -> None:
            watchdog.be_patient()  # it compiles each time that it plays, or films
            reconnect_to_learner()

        beat, run = Beat(context, watchdog.be_patient), RunDirectory(Path(context.payload["run"]))
        play_versions(site.plan, site.layouts, reader, run, context.stop, beat, reconnect, watchdog)


def learner(context: WorkerContext) -> None:
    """Learn from what actors send, from the newest checkpoint on if there is one."""
    payload = context.payload
    with _site(context) as (site, watchdog), _run_directory(context, site) as (run, mirror):
        plan, beginning, accounting = site.plan, _beginning(context, run, site.plan), site.accounting
        assert accounting is not None
        bar = Progress(plan.experiment.limits.total_steps)
        watchdog.be_patient()
        worker = build_learner(site, beginning.state, beginning.counts.updates, beginning.counts.env_steps)

        def count() -> Samples:
            return tally(accounting, payload["since"], running=True, reports=context.membership.accounts or ())

        def is_fed(timeout: float) -> bool:
            # Replay workers give nothing before learning starts, but its steps count, and so must its time.
            return worker.wait(timeout) or (isinstance(worker, ReplayLearner) and count().produced > 0)

        def work(recorder: Recorder) -> None:
            recorder.tally = count
            watchdog.be_patient()
            began = time.monotonic()
            worker.warm_up()
            worker.publish()
            context.membership.announce(site.wiring.endpoints)
            with worker:
                # Actors import and compile, too: neither is part of the rate.
                limit_s = max(DATA_LIMIT_S, 2 * plan.experiment.limits.hang_s)
                wait_for_data(is_fed, lambda: count().produced, context.stop, limit_s, watchdog.be_patient)
                recorder.start(time.monotonic() - began)
                workers, logged = WorkerMetrics(context, worker, count), LoggedMetrics(run)

                def check() -> None:
                    watchdog()
                    mirror.check()

                training.learn(worker, recorder, check, lambda: workers() | logged())
                watchdog.be_patient()  # the last checkpoint

        with bar:
            recording.record(plan, run, beginning, bar, context.stop, None, work)


@contextmanager
def _run_directory(context: WorkerContext, site: Site) -> Iterator[tuple[RunDirectory, Mirror | NoMirror]]:
    """The directory that this learner writes, alone, and sends to storage where there is some. On a cluster that
    directory is its own: it begins with what is stored.
    """
    path, url = Path(context.payload["run"]), context.payload["storage"]
    storage, apart = Storage(url) if url else None, context.payload["accounting"] is None
    run = RunDirectory(path / "learner" if storage and apart else path)
    run.path.mkdir(parents=True, exist_ok=True)
    with run.write_alone():
        if storage is None:
            yield run, NoMirror()
            return
        with Mirror(storage, run, site.sender.incarnation) as mirror:
            if apart:
                fetch_checkpoint(storage, run)
                fetch_files(storage, run)
            yield run, mirror
        if apart:
            shutil.rmtree(run.path)  # all of it is stored


def _run(
    context: WorkerContext, build: Callable[[Site], Actor | IndividualActor | InferenceWorker | ReplayWorker]
) -> None:
    with _site(context) as (site, watchdog):
        worker = build(site)
        worker.warm_up()
        context.membership.announce(site.wiring.endpoints)
        watchdog()
        worker.run(context.stop)


@contextmanager
def _site(context: WorkerContext) -> Iterator[tuple[Site, Watchdog]]:
    """What this worker is built from. It is watched from the start: libraries may hang as they begin, too."""
    experiment = settings.read_experiment(context.payload["experiment"])
    with ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(experiment.limits.hang_s))
        plan = _plan(context, experiment)
        sender = SenderId(context.index, context.payload["since"] + context.incarnation)
        find = partial(wait_for, context, watchdog.be_patient)
        transport = stack.enter_context(_transport(context, plan))
        site = Site(
            plan=plan,
            layouts=make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows),
            wiring=Wiring(make_program(plan), context.role, sender, transport, find, stack),
            sender=sender,
            stack=stack,
            stop=context.stop,
            incarnation=context.incarnation,
            membership=context.membership,
            accounting=Path(context.payload["accounting"] or Path(context.host.shm) / "accounting"),
            beat=Beat(context, watchdog),
            watchdog=watchdog,
            be_patient=watchdog.be_patient,
        )
        yield site, watchdog


def _plan(context: WorkerContext, experiment: Experiment) -> Plan:
    """The launcher's plan. Actors share their host's cores, so that EnvPool's threads do not crowd each other."""
    if experiment.env.threads is None:
        experiment = replace(experiment, env=replace(experiment.env, threads=context.host.cores))
    plan = rebuild_plan(experiment, context.payload["choices"])
    if isinstance(plan.algorithm.experience, Individuals):
        plan.algorithm.experience.table.share(Path(context.host.shm))  # one on each host
    return plan


def _transport(context: WorkerContext, plan: Plan) -> Transport:
    name, host = f"{context.role}-{context.index}", context.host
    place = TransportPlace(name, host.identity, Path(host.shm), host.address, context.keys)
    return load_path(TRANSPORTS[plan.transport].entry, "transport").at(place)


def _beginning(context: WorkerContext, run: RunDirectory, plan: Plan) -> recording.Beginning:
    if Checkpoints(run.checkpoints).updates():
        return recording.begin_again(plan, run)
    init_from = context.payload["init_from"]
    source = None if init_from is None else RunDirectory(Path(init_from))
    beginning = recording.begin(plan, source, context.payload["track"])
    beginning.counts.notes = context.payload["notes"]
    return beginning
