"""Runs a plan to its end: compile, loop, report, checkpoint, summary."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import jax

from podium.algorithms import learning
from podium.algorithms.algorithm import Individuals
from podium.core.errors import EnvError
from podium.core.types import Fragment, Tree
from podium.envs.jax_wrappers import vectorize
from podium.launch.builders import AnyLearner
from podium.launch.one_process import OneProcess
from podium.launch.plan import Plan
from podium.ops.random_keys import random_keys, run_key
from podium.runs.progress import Progress
from podium.runs.recorder import Recorder
from podium.runs.summary import Samples
from podium.workers.fused import FAULT, Fused, FusedState
from podium.workers.layout import make_layouts
from podium.workers.population import Population
from podium.workers.replay_learner import start_store


def initial_state(plan: Plan) -> Tree:
    """What the first checkpoint would hold: `train` and `store`, and in fused mode the rows and the update too. With
    workers, the `snapshots` of environments that can tell them are added as they are (`launch.env_slots`).

    Trace it with jax.eval_shape for a template to restore into.
    """
    return _build_state(plan, *_traced(plan))


def compile_initial_state(plan: Plan) -> Tree:
    """`initial_state` by a compiled program, the same one for every seed and `limits.total_steps`."""
    return jax.jit(partial(_build_state, plan))(*_traced(plan))


def _traced(plan: Plan) -> tuple[jax.Array, dict[str, float]]:
    return run_key(plan.experiment.seed), plan.experiment.hyper()


def _build_state(plan: Plan, key: jax.Array, hyper: dict[str, float]) -> Tree:
    if plan.mode == "fused":
        return _fused(plan).build(key, hyper)._asdict()
    train = plan.algorithm.init(random_keys(key).init, plan.env.spec, hyper)
    if shards := plan.replay_workers:
        return {"train": train, "store": start_store(shards)}
    if isinstance(plan.algorithm.experience, Individuals):
        return {"train": train, "store": ()}
    return {"train": train, "store": learning.init(plan.algorithm, example(plan))}


def example(plan: Plan) -> Fragment:
    """Shapes of what the learner eats at once."""
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.num_rows)
    return layouts.record.tree(layouts.record.schema.fields).fragment


Attach = Callable[[Recorder, Callable[[], Tree]], None]
"""Is given the recorder, and a function for the parameters as they are."""


def run(plan: Plan, recorder: Recorder, progress: Progress, state: Tree, attach: Attach) -> None:
    """Train from `state` until a limit, an interrupt or an error."""
    (run_fused if plan.mode == "fused" else run_workers)(plan, recorder, progress, state, attach)


def run_fused(plan: Plan, recorder: Recorder, progress: Progress, state: Tree, attach: Attach) -> None:
    """Dispatch after dispatch of one XLA program."""
    fused = _fused(plan)
    now = fused.place(FusedState(**state))
    progress.say("compiling (the next run of this experiment starts at once)")
    began = time.monotonic()
    fused.warm_up(now)
    recorder.start(time.monotonic() - began)
    produced = 0
    recorder.own_samples = lambda: Samples(produced=produced)
    attach(recorder, lambda: plan.algorithm.params(now.train))
    while recorder.ended is None:
        budget = plan.experiment.limits.total_steps - recorder.counts.env_steps
        now, dispatched = fused.dispatch(now, budget)
        rows = list(fused.rows_of(dispatched))
        recorder.measure_rate(sum(steps for steps, _, _ in rows))
        for steps, metrics, episodes in rows:
            if (code := int(metrics.pop(FAULT, 0))) and isinstance(fused, Fused):
                raise EnvError(fused.describe_fault(code, recorder.counts.updates))
            produced += steps
            recorder.report(steps, metrics, episodes)
        if recorder.checkpoint_due() or recorder.ended is not None:
            recorder.save(now._asdict())


def run_workers(plan: Plan, recorder: Recorder, progress: Progress, state: Tree, attach: Attach) -> None:
    """Learner and actors as threads of this process."""
    with closing(OneProcess(plan, state, recorder.counts.updates)) as workers:
        recorder.own_samples = workers.samples
        attach(recorder, lambda: plan.algorithm.params(workers.learner.state))
        progress.say("compiling (the next run of this experiment starts at once)")
        began = time.monotonic()
        workers.warm_up()
        recorder.start(time.monotonic() - began)
        with workers.learner, workers:
            learn(workers.learner, recorder, workers.check, snapshots=workers.snapshots)


def learn(
    learner: AnyLearner,
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
            recorder.report(learned.steps, learned.metrics, learned.episodes, *staleness, metrics(), learned.outcomes)
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


def _fused(plan: Plan) -> Fused | Population:
    assert plan.env.jax_env is not None
    devices = jax.local_devices()[: plan.devices]
    if isinstance(plan.algorithm.experience, Individuals):
        return Population(plan.algorithm, plan.env.jax_env, plan.experiment, devices)
    return Fused(plan.algorithm, vectorize(plan.env.jax_env), plan.experiment, devices)
