"""What each process of a run does: finds its streams through the directory, builds its worker, and runs it.

These are the entries that a program names. The experiment is read from the run's own experiment.toml, so that a
worker that is started again, or elsewhere, is the same.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

from podium.algorithms.algorithm import Individuals
from podium.core import settings
from podium.core.config import Experiment
from podium.core.machine import count_cores
from podium.launch import recording, thread_workers, training
from podium.launch.evaluation import draw_without_a_screen, play_versions
from podium.launch.heartbeat import Beat, WorkerMetrics
from podium.launch.plan import Plan, make_plan
from podium.launch.reconnect import Reconnect
from podium.launch.waiting import DATA_LIMIT_S, first_update, wait_for, wait_for_data
from podium.launch.watchdog import Watchdog
from podium.ops.random_keys import run_key
from podium.orchestrator.worker import WorkerContext
from podium.protocol.directory import Registration
from podium.protocol.schema import SenderId, Version
from podium.protocol.shm.transport import ShmTransport
from podium.protocol.streams import InferenceClient, ParameterPublisher, ParameterReader, Transport
from podium.protocol.tcp.transport import TcpTransport
from podium.runs.accounting import ActorAccount, LearnerAccount, tally
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.progress import Progress
from podium.runs.recorder import Recorder
from podium.runs.summary import Samples
from podium.workers.action_sources import ActionSource, InlineActions
from podium.workers.individual_actor import Mean
from podium.workers.individual_learner import IndividualLearner
from podium.workers.inference import InferenceWorker
from podium.workers.layout import Layouts, make_layouts
from podium.workers.learner import Learner
from podium.workers.replay import ReplayWorker
from podium.workers.replay_layout import TURNS, make_replay_layouts
from podium.workers.replay_learner import ReplayLearner
from podium.workers.served_actions import ServedActions

REPLY_LIMIT_S = 10.0
"""How long an inference worker may take for a request; compiling comes before it announces itself."""
ROWS_LIMIT_S = 3600.0
"""How long a replay worker may: it answers when there are steps enough, which random play may take long for. One that
dies is noticed otherwise, and what it owed is asked of its next incarnation."""


def learner(context: WorkerContext) -> None:
    """Learn from whatever actors send, from the newest checkpoint on if there is one."""
    with ExitStack() as stack:
        run, plan, watchdog = stack.enter_context(_watched(context))
        stack.enter_context(run.write_alone())
        payload, layouts = context.payload, _layouts(plan)
        beginning = _beginning(context, run, plan)
        bar = Progress(plan.experiment.limits.total_steps)
        transport = stack.enter_context(_transport(context, plan))
        publisher = stack.enter_context(closing(transport.parameter_publisher("main", layouts.params.schema)))
        watchdog.be_patient()
        given = context, run, plan, layouts, beginning, transport, publisher, stack
        if plan.replay_workers:
            worker, endpoints = _learner_of_rows(*given), {}
        else:
            worker, endpoints = _learner_of_fragments(*given, watchdog)

        def work(recorder: Recorder) -> None:
            def count() -> Samples:
                return tally(run.accounting, payload["since"], running=True)

            def is_fed(timeout: float) -> bool:
                # Replay workers give nothing before learning starts, but its steps count, and so must its time.
                return worker.wait(timeout) or (isinstance(worker, ReplayLearner) and count().produced > 0)

            recorder.tally = count
            watchdog.be_patient()
            began = time.monotonic()
            worker.warm_up()
            worker.publish()
            context.membership.announce({**endpoints, "parameters": publisher.endpoint})
            with worker:
                # Actors import and compile, too: neither is part of the rate.
                limit_s = max(DATA_LIMIT_S, 2 * plan.experiment.limits.hang_s)
                wait_for_data(is_fed, lambda: count().produced, context.stop, limit_s, watchdog.be_patient)
                recorder.start(time.monotonic() - began)
                training.learn(worker, recorder, watchdog, WorkerMetrics(context, run, worker))
                watchdog.be_patient()  # the last checkpoint

        with bar:
            recording.record(plan, run, beginning, bar, context.stop, None, work)


def _beginning(context: WorkerContext, run: RunDirectory, plan: Plan) -> recording.Beginning:
    if Checkpoints(run.checkpoints).updates():
        return recording.begin_again(plan, run)
    init_from = context.payload["init_from"]
    source = None if init_from is None else RunDirectory(Path(init_from))
    beginning = recording.begin(plan, source, context.payload["track"])
    beginning.counts.notes = context.payload["notes"]
    return beginning


def _learner_of_fragments(
    context: WorkerContext,
    run: RunDirectory,
    plan: Plan,
    layouts: Layouts,
    beginning: recording.Beginning,
    transport: Transport,
    publisher: ParameterPublisher,
    stack: ExitStack,
    beat: Callable[[], None],
) -> tuple[Learner | IndividualLearner, dict[str, str]]:
    """The learner that actors send their fragments to, and where they do."""
    receiver = stack.enter_context(closing(transport.sample_receiver(layouts.record.schema)))
    account = LearnerAccount(run.accounting)
    stack.callback(account.close)
    account.open(beginning.counts.env_steps)
    version = Version(context.incarnation, beginning.counts.updates)
    worker = training.make_learner(plan, layouts, beginning.state, version, receiver, publisher, account, beat)
    return worker, {"samples": receiver.endpoint}


def _learner_of_rows(
    context: WorkerContext,
    run: RunDirectory,
    plan: Plan,
    layouts: Layouts,
    beginning: recording.Beginning,
    transport: Transport,
    publisher: ParameterPublisher,
    stack: ExitStack,
) -> ReplayLearner:
    """The learner that asks replay workers for rows; nobody sends it anything by himself."""
    shapes, share = make_replay_layouts(plan.replay, layouts), training.make_share(plan, layouts)
    schemas, sender_id = (shapes.request.schema, shapes.answer.schema), SenderId(0, context.incarnation)
    rows, ends = [share.updates * share.rows] * TURNS, []
    for entry in wait_for(context, "replay", plan.replay_workers):
        client = transport.inference_client(entry.endpoints["inference"], *schemas, sender_id, rows, ROWS_LIMIT_S)
        ends.append((entry, stack.enter_context(closing(client))))
    version = Version(context.incarnation, beginning.counts.updates)
    clients, reconnect = [client for _, client in ends], Reconnect(context.membership, ends)
    return training.make_replay_learner(plan, layouts, beginning.state, version, clients, publisher, reconnect)


def replay(context: WorkerContext) -> None:
    """Keep this shard's part of the past."""
    with ExitStack() as stack:
        run, plan, watchdog = stack.enter_context(_watched(context))
        layouts, workers = _layouts(plan), plan.replay_workers
        experience = replace(plan.replay, capacity=plan.replay.capacity // workers)
        shapes, incarnation = make_replay_layouts(experience, layouts), context.payload["since"] + context.incarnation
        transport = stack.enter_context(_transport(context, plan))
        receiver = stack.enter_context(closing(transport.sample_receiver(layouts.record.schema)))
        server = stack.enter_context(closing(transport.inference_server(shapes.request.schema, shapes.answer.schema)))
        account = LearnerAccount(run.accounting, f"replay-{context.index}")
        stack.callback(account.close)
        account.begin(incarnation)
        _, _, key = jax.random.split(run_key(plan.experiment.seed), 3)
        key = jax.random.fold_in(jax.random.fold_in(key, context.index), incarnation)
        share, beat = training.make_share(plan, layouts), Beat(context, watchdog)
        worker = ReplayWorker(experience, layouts, shapes, receiver, server, account, share, key, incarnation, beat)
        worker.warm_up()
        context.membership.announce({"samples": receiver.endpoint, "inference": server.endpoint})
        watchdog()
        worker.run(context.stop)


def actor(context: WorkerContext) -> None:
    """Step this actor's share of the environments."""
    sender_id = SenderId(context.index, context.payload["since"] + context.incarnation)
    with ExitStack() as stack:
        run, plan, watchdog = stack.enter_context(_watched(context))
        layouts = _layouts(plan)
        transport = stack.enter_context(_transport(context, plan))
        peer = wait_for(context, "learner")[0]
        watchdog.be_patient()
        reader = transport.parameter_reader(peer.endpoints["parameters"], layouts.params.schema)
        stack.enter_context(closing(reader))
        servers = _ask_servers(context, plan, layouts, transport, sender_id)
        for _, client in servers:
            stack.enter_context(closing(client))
        ask: Callable[[list[InferenceClient]], None] | None = None
        watchdog.be_patient()
        if isinstance(plan.algorithm.experience, Individuals):
            mean = Mean(layouts.params, reader)
            update = first_update(context, mean)
            watchdog()  # environments have no longer to start than to step
            slots = thread_workers.make_individual_slots(plan, layouts, context.index, update, context.incarnation)
            make = partial(thread_workers.make_individual_actor, plan, layouts, slots, mean, sender_id)
        else:
            policy = _policy(plan, layouts, reader, [client for _, client in servers])
            # With staleness, one that is served reads no parameters itself: the replies tell their versions.
            apart = reader if plan.mode == "served" and plan.experiment.topology.staleness else None
            update = first_update(context, policy, apart)
            ask = policy.replace if isinstance(policy, ServedActions) else None
            watchdog()
            slots = thread_workers.make_slots(plan, layouts, context.index, update, context.incarnation)
            make = partial(thread_workers.make_actor, plan, layouts, slots, policy)
        watchdog.be_patient()
        stack.callback(thread_workers.close_slots, slots)
        shards = plan.replay_workers
        keeper = wait_for(context, "replay", shards)[context.index % shards] if shards else peer
        samples = keeper.endpoints["samples"]
        watchdog.be_patient()
        sender = transport.sample_sender(samples, layouts.record.schema, sender_id, thread_workers.credits(plan))
        stack.enter_context(closing(sender))
        account = ActorAccount.create(run.accounting, *sender_id)
        reconnect = Reconnect(context.membership, [(keeper, sender), (peer, reader), *servers], ask)
        worker = make(sender, account, Beat(context, watchdog), reconnect)
        worker.warm_up()
        context.membership.announce({})
        watchdog()
        worker.run(context.stop)


def inference(context: WorkerContext) -> None:
    """Choose actions for all actors that ask."""
    with ExitStack() as stack:
        _, plan, watchdog = stack.enter_context(_watched(context))
        layouts, topology = _layouts(plan), plan.experiment.topology
        transport = stack.enter_context(_transport(context, plan))
        peer = wait_for(context, "learner")[0]
        watchdog.be_patient()
        server = stack.enter_context(closing(transport.inference_server(layouts.request.schema, layouts.answer.schema)))
        reader = transport.parameter_reader(peer.endpoints["parameters"], layouts.params.schema)
        stack.enter_context(closing(reader))
        rows, wait_s = plan.inference_rows, topology.inference_wait_ms / 1e3
        reconnect = Reconnect(context.membership, [(peer, reader)])
        beat = Beat(context, watchdog)
        worker = InferenceWorker(plan.algorithm, layouts, server, reader, rows, wait_s, beat, reconnect)
        worker.warm_up()
        context.membership.announce({"inference": server.endpoint})
        watchdog()
        worker.run(context.stop)


def evaluator(context: WorkerContext) -> None:
    """Play greedy episodes with the newest version, again and again."""
    draw_without_a_screen()
    with ExitStack() as stack:
        run, plan, watchdog = stack.enter_context(_watched(context))
        layouts = _layouts(plan)
        transport = stack.enter_context(_transport(context, plan))
        peer = wait_for(context, "learner")[0]
        watchdog.be_patient()
        reader = transport.parameter_reader(peer.endpoints["parameters"], layouts.params.schema)
        stack.enter_context(closing(reader))
        context.membership.announce({})
        reconnect_to_learner = Reconnect(context.membership, [(peer, reader)])

        def reconnect() -> None:
            watchdog.be_patient()  # it compiles each time that it plays, or films
            reconnect_to_learner()

        beat = Beat(context, watchdog.be_patient)
        play_versions(plan, layouts, reader, run, context.stop, beat, reconnect, watchdog)


@contextmanager
def _watched(context: WorkerContext) -> Iterator[tuple[RunDirectory, Plan, Watchdog]]:
    """The run and its plan, and who watches over this process from now on: libraries may hang as they begin, too."""
    run = RunDirectory(Path(context.payload["run"]))
    experiment = settings.read_experiment(run.experiment_toml)
    with Watchdog(experiment.limits.hang_s) as watchdog:
        yield run, _plan(context, experiment), watchdog


def _plan(context: WorkerContext, experiment: Experiment) -> Plan:
    if experiment.env.threads is None:  # actors share the cores, so that EnvPool's threads do not crowd each other
        share = count_cores() // (experiment.topology.actors or 1)
        experiment = replace(experiment, env=replace(experiment.env, threads=max(1, share)))
    plan, shm = make_plan(experiment), Path(context.payload["shm"])
    if isinstance(plan.algorithm.experience, Individuals) and shm.is_dir():
        plan.algorithm.experience.table.share(shm)  # one on each host
    return plan


def _layouts(plan: Plan) -> Layouts:
    return make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)


def _transport(context: WorkerContext, plan: Plan) -> Transport:
    if plan.transport == "shm":
        directory = Path(context.payload["shm"])
        if context.role == "replay":  # a directory has one receiver of samples
            directory = directory / f"replay-{context.index}"
            directory.mkdir(mode=0o700, exist_ok=True)
        return ShmTransport(directory)
    assert context.keys is not None, "only threads have no keys, and they need none"
    return TcpTransport(context.keys, share=Path(context.payload["shm"]))


def _ask_servers(
    context: WorkerContext, plan: Plan, layouts: Layouts, transport: Transport, sender_id: SenderId
) -> list[tuple[Registration, InferenceClient]]:
    """A client of each inference worker, where there are some."""
    if plan.mode != "served":
        return []
    rows = [plan.rows] * (plan.slots // plan.actors)
    schemas = layouts.request.schema, layouts.answer.schema
    return [
        (entry, transport.inference_client(entry.endpoints["inference"], *schemas, sender_id, rows, REPLY_LIMIT_S))
        for entry in wait_for(context, "inference", plan.experiment.topology.inference_workers)
    ]


def _policy(plan: Plan, layouts: Layouts, reader: ParameterReader, clients: Sequence[InferenceClient]) -> ActionSource:
    staleness = plan.experiment.topology.staleness
    if plan.mode == "inline":
        return InlineActions(plan.algorithm, layouts, reader, staleness)
    return ServedActions(clients, layouts, reader if staleness == 0 else None)
