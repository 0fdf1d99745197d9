"""Runs a plan to its end: compile, loop, report, checkpoint, summary."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType

import jax
import numpy as np

from podium.core.errors import EnvError
from podium.core.types import Tree
from podium.envs.jax_wrappers import vectorize
from podium.launch.plan import Plan
from podium.ops.keys import run_key
from podium.runs.progress import Progress
from podium.runs.recorder import Recorder
from podium.workers.actor import Actor
from podium.workers.fused import Fused, FusedState
from podium.workers.inline import Inline


def initial_state(plan: Plan) -> Tree:
    """What the first checkpoint would hold: `train`, and in fused mode the rows and the update too.

    Trace it with jax.eval_shape for a template to restore into.
    """
    if plan.mode == "fused":
        return _fused(plan).init()._asdict()
    key, _, _ = jax.random.split(run_key(plan.experiment.seed), 3)
    return {"train": plan.algorithm.init(key, plan.env.spec, plan.experiment.algorithm.hyper())}


def run(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> Tree:
    """Train from `state` until a limit, an interrupt or an error; returns the final training state."""
    return (run_fused if plan.mode == "fused" else run_inline)(plan, recorder, progress, state)


def run_fused(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> Tree:
    """Dispatch after dispatch of one XLA program."""
    fused = _fused(plan)
    now = fused.place(FusedState(**state))
    progress.say("compiling (the next run of this experiment starts at once)")
    began = time.monotonic()
    fused.warm_up(now)
    recorder.start(time.monotonic() - began)
    produced = 0
    recorder.ledger = lambda: (produced, 0)
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
    return now.train


def run_inline(plan: Plan, recorder: Recorder, progress: Progress, state: Tree) -> Tree:
    """A collector thread beside this one, which learns."""
    experiment, update = plan.experiment, recorder.counts.updates
    _, act_key, learn_key = jax.random.split(run_key(experiment.seed), 3)
    train = jax.device_put(state["train"])
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(plan.env.make_host(seeds))) for seeds in _slot_seeds(plan, update)]
        actor = Actor(plan.algorithm, envs, plan.algorithm.params(train), act_key)
        inline = Inline(plan.algorithm, actor, train, learn_key, update, experiment.topology.staleness)
        # The actor counts what it produced, the learner what it trained on, the buffers what is left in them.
        recorder.ledger = lambda: (actor.steps, inline.in_flight())
        progress.say("compiling (the next run of this experiment starts at once)")
        began = time.monotonic()
        inline.warm_up()
        recorder.start(time.monotonic() - began)
        with inline:
            while recorder.ended is None:
                try:
                    learned = inline.step()
                except EnvError:
                    # A signal to the whole group may end the environments' processes before it ends us.
                    if not recorder.end_if_interrupted():
                        raise
                    recorder.save({"train": inline.state})
                    break
                recorder.measure_rate(learned.steps)
                recorder.report(
                    learned.steps, learned.metrics, learned.episodes, learned.staleness_mean, learned.staleness_max
                )
                if recorder.checkpoint_due() or recorder.ended is not None:
                    recorder.save({"train": inline.state})
        return inline.state


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


def _fused(plan: Plan) -> Fused:
    assert plan.env.jax_env is not None
    devices = jax.local_devices()[: plan.devices]
    return Fused(plan.algorithm, vectorize(plan.env.jax_env), plan.experiment, devices)


def _slot_seeds(plan: Plan, update: int) -> list[np.ndarray]:
    """Seeds of every slot's environments. A resumed run has other ones: it would repeat its episodes."""
    seeds = np.random.SeedSequence([plan.experiment.seed, update]).generate_state(plan.experiment.env.num_envs)
    return np.split(seeds >> 1, plan.slots)  # libraries take 31 bits
