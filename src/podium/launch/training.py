"""Runs a plan to its end: compile, loop, report, checkpoint, summary."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import FrameType

import jax

from podium.algorithms import learning
from podium.algorithms.algorithm import Individuals
from podium.core.errors import EnvError
from podium.core.types import Fragment, Tree
from podium.envs.jax_wrappers import vectorize
from podium.launch.plan import Plan
from podium.launch.populations import learner_devices
from podium.launch.thread_workers import Crew
from podium.ops.random_keys import run_key
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import Version
from podium.protocol.streams import MOST_ROWS, InferenceClient, ParameterPublisher, SampleReceiver
from podium.runs.accounting import LearnerAccount
from podium.runs.progress import Progress
from podium.runs.recorder import Recorder
from podium.runs.summary import Samples
from podium.workers.fused import Fused, FusedState
from podium.workers.individual_learner import IndividualLearner
from podium.workers.layout import Layouts, make_layouts
from podium.workers.learner import ROUND, Learner
from podium.workers.population import Population
from podium.workers.replay import Share
from podium.workers.replay_layout import make_replay_layouts
from podium.workers.replay_learner import ReplayLearner, start_store
from podium.workers.replay_requests import Asked, ReplayRequests

REQUEST_BYTES = 16_000_000
"""Of rows that replay workers give at a time, as far as updates can be cut: two requests are out, and containers often
have 64 MB of shared memory."""


def initial_state(plan: Plan) -> Tree:
    """What the first checkpoint would hold: `train` and `store`, and in fused mode the rows and the update too. With
    workers, the `snapshots` of environments that can tell them are added as they are (`launch.thread_workers`).

    Trace it with jax.eval_shape for a template to restore into.
    """
    if plan.mode == "fused":
        return _fused(plan).init()._asdict()
    key, _, _ = jax.random.split(run_key(plan.experiment.seed), 3)
    train = plan.algorithm.init(key, plan.env.spec, plan.experiment.algorithm.hyper())
    if shards := plan.replay_workers:
        return {"train": train, "store": start_store(shards)}
    if isinstance(plan.algorithm.experience, Individuals):
        return {"train": train, "store": ()}
    return {"train": train, "store": learning.init(plan.algorithm, example(plan))}


def example(plan: Plan) -> Fragment:
    """Shapes of what the learner eats at once."""
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.experiment.env.num_envs)
    return layouts.record.tree(layouts.record.schema.fields).fragment


def run(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> None:
    """Train from `state` until a limit, an interrupt or an error."""
    (run_fused if plan.mode == "fused" else run_workers)(plan, recorder, progress, state)


def run_fused(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> None:
    """Dispatch after dispatch of one XLA program."""
    fused = _fused(plan)
    now = fused.place(FusedState(**state))
    progress.say("compiling (the next run of this experiment starts at once)")
    began = time.monotonic()
    fused.warm_up(now)
    recorder.start(time.monotonic() - began)
    produced = 0
    recorder.own_samples = lambda: Samples(produced=produced)
    while recorder.ended is None:
        budget = plan.experiment.limits.total_steps - recorder.counts.env_steps
        now, dispatched = fused.dispatch(now, budget)
        rows = list(fused.rows_of(dispatched))
        recorder.measure_rate(sum(steps for steps, _, _ in rows))
        for steps, metrics, episodes in rows:
            produced += steps
            recorder.report(steps, metrics, episodes)
        if recorder.checkpoint_due() or recorder.ended is not None:
            recorder.save(now._asdict())


def run_workers(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> None:
    """Learner and actors as threads of this process."""
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    account, update = LearnerAccount(None), recorder.counts.updates
    with MemoryTransport() as transport, ExitStack() as stack:
        receiver = stack.enter_context(closing(transport.sample_receiver(layouts.record.schema)))
        publisher = stack.enter_context(closing(transport.parameter_publisher("main", layouts.params.schema)))
        learner = make_learner(plan, layouts, state, Version(0, update), receiver, publisher, account)
        learner.publish()
        crew = Crew(plan, layouts, transport, receiver.endpoint, publisher.endpoint, update)
        stack.callback(crew.close)
        if "env_snapshots" in state:
            crew.load(update, state["env_snapshots"])
        recorder.own_samples = lambda: crew.samples(account)
        progress.say("compiling (the next run of this experiment starts at once)")
        began = time.monotonic()
        learner.warm_up()
        crew.warm_up()
        recorder.start(time.monotonic() - began)
        with learner, crew:
            learn(learner, recorder, crew.check, snapshots=crew.snapshots)


def make_learner(
    plan: Plan,
    layouts: Layouts,
    state: Tree,
    version: Version,
    receiver: SampleReceiver,
    publisher: ParameterPublisher,
    account: LearnerAccount,
    beat: Callable[[], None] = lambda: None,
) -> Learner | IndividualLearner:
    """The learner of a plan, from a training state on; it calls `beat` in the midst of long updates."""
    _, _, key = jax.random.split(run_key(plan.experiment.seed), 3)
    rest = {
        "key": key,
        "version": version,
        "receiver": receiver,
        "publisher": publisher,
        "account": account,
        "slots": plan.slots,
        "staleness": plan.experiment.topology.staleness,
    }
    if isinstance(individuals := plan.algorithm.experience, Individuals):
        devices = jax.local_devices()[: learner_devices(individuals)]
        return IndividualLearner(plan.algorithm, layouts, state["train"], devices=devices, **rest)
    train, store = jax.device_put((state["train"], state["store"]))
    return Learner(plan.algorithm, layouts, train, store, **rest, beat=beat)


def make_replay_learner(
    plan: Plan,
    layouts: Layouts,
    state: Tree,
    version: Version,
    clients: Sequence[InferenceClient],
    publisher: ParameterPublisher,
    reconnect: Callable[[], None],
) -> ReplayLearner:
    """The learner of a plan with replay workers."""
    _, _, key = jax.random.split(run_key(plan.experiment.seed), 3)
    shapes, share = make_replay_layouts(plan.replay, layouts), make_share(plan, layouts)
    return ReplayLearner(
        plan.algorithm,
        layouts,
        jax.device_put(state["train"]),
        state["store"],
        key=key,
        version=version,
        requests=ReplayRequests(shapes, clients, Asked(share.updates, share.rows), reconnect),
        publisher=publisher,
        updates=_updates_of_a_round(plan),
    )


def make_share(plan: Plan, layouts: Layouts) -> Share:
    """What each replay worker does of a plan's work. A round of updates is asked for in parts that take no long time to
    train on, and no large memory to hold: it may be a thousand batches of pictures.
    """
    shards, experience, updates = plan.replay_workers, plan.replay, _updates_of_a_round(plan)
    rows, steps = experience.batch_size // shards, _rows_of_a_round(plan) / shards
    answer = make_replay_layouts(experience, layouts).answer.schema
    batch_bytes = experience.batch_size * sum(field.nbytes for field in answer.fields)
    most = max(1, min(ROUND, REQUEST_BYTES // batch_bytes, MOST_ROWS // rows))
    part = max(n for n in range(1, min(most, updates) + 1) if updates % n == 0)
    parts = updates // part
    return Share(
        steps=steps / parts,
        starts=max(math.ceil(steps), -(-experience.starts // shards)),
        ahead=(plan.experiment.topology.staleness + 1) * parts,
        updates=part,
        rows=rows,
    )


def _updates_of_a_round(plan: Plan) -> int:
    return learning.updates_per_fragment(plan.replay, _rows_of_a_round(plan))


def _rows_of_a_round(plan: Plan) -> int:
    """Those of a fragment of all environments."""
    return plan.replay.length * plan.experiment.env.num_envs


def learn(
    learner: Learner | ReplayLearner | IndividualLearner,
    recorder: Recorder,
    check: Callable[[], None],
    metrics: Callable[[], Mapping[str, float]] = lambda: {},
    snapshots: Callable[[int], Tree | None] = lambda update: None,
) -> None:
    """Update after update, until the recorder says that the run has ended.

    `check` raises if a worker of this process has died. `metrics` gives those of workers, `snapshots` where
    environments were at an update, for checkpoints.
    """
    while recorder.ended is None:
        learned = learner.step(timeout=0.5)
        if learned is not None:
            recorder.measure_rate(learned.steps)
            staleness = learned.staleness_mean, learned.staleness_max
            recorder.report(learned.steps, learned.metrics, learned.episodes, *staleness, metrics())
        try:
            check()
        except EnvError:
            # A signal to the whole group may end the environments' processes before it ends us.
            if not recorder.end_if_interrupted():
                raise
        if learned is None and not (recorder.end_if_interrupted() or recorder.end_if_time_is_up()):
            continue
        if recorder.checkpoint_due() or recorder.ended is not None:
            state = {"train": learner.state, "store": learner.store}
            if (found := snapshots(learner.version.update)) is not None:
                state["env_snapshots"] = found
            recorder.save(state)


@contextmanager
def interruptible(progress: Progress) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets: end at the next update, with a checkpoint. Twice: end now."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(signum: int, _: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        progress.say(f"{signal.Signals(signum).name}: writing a checkpoint; once more to stop without one")

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _fused(plan: Plan) -> Fused | Population:
    assert plan.env.jax_env is not None
    devices = jax.local_devices()[: plan.devices]
    if isinstance(plan.algorithm.experience, Individuals):
        return Population(plan.algorithm, plan.env.jax_env, plan.experiment, devices)
    return Fused(plan.algorithm, vectorize(plan.env.jax_env), plan.experiment, devices)
