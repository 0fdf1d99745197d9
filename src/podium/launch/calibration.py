"""Measures an experiment's parts on this machine before a run starts, where `topology.mode = "auto"` leaves open where
they run. It stops as soon as the answer is clear, and takes a few seconds at most, compilation aside.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms import learning, replay
from podium.algorithms.algorithm import Fragments, Individuals, Replay
from podium.core.config import TopologyConfig
from podium.core.errors import EnvError
from podium.core.machine import count_cores
from podium.core.specs import Action, Box, Discrete
from podium.core.transports import MEMORY, TransportName
from podium.envs import registry as envs
from podium.envs.interface import HostEnv
from podium.launch import training
from podium.launch.names import are_known_everywhere
from podium.launch.placement import Cost, Costs, Placement, acts_cheaply, choose, is_short, most_actors
from podium.launch.plan import Plan, check_requests, credits_of_slot
from podium.launch.shared_memory import find_room
from podium.ops.compiling import jit_learning
from podium.ops.random_keys import run_key
from podium.workers.action_sources import jit_act
from podium.workers.layout import make_layouts

ENV_S, ACT_S, UPDATE_S = 0.4, 0.1, 0.6
"""How long each part is watched; what takes longer is done once to warm up, and once to measure."""
LONG_UPDATE_S = 3.0
GRADIENT = 3
"""A gradient takes about three times as long as a forward pass over the same rows."""
BLOCKS = 4
"""Each is watched in so many blocks, of which the fastest counts: the others were disturbed."""
SEED = 0xCA11
"""Of the environments that are measured: others than those that will be trained in."""

SCHEDULE = Path("/proc/thread-self/schedstat")

T = TypeVar("T")


def settle(plan: Plan) -> Plan:
    """The plan with its open choices made by measuring: mode, actors, slots, inference. Another is returned as it is.

    plan = settle(make_plan(experiment))
    """
    if plan.asked is None:
        return plan
    try:
        measured = measure(plan)
    except EnvError as error:
        # The run will meet it, too, and tell it in full with all that belongs to a run that failed.
        why = f"not measured, because an environment failed: {str(error).splitlines()[0]}"
        return replace(plan, asked=None, notes=(*plan.notes, why))
    place = choose(
        measured,
        count_cores(),
        plan.experiment.env.num_envs,
        steps=plan.experiment.limits.total_steps,
        seconds=_seconds(plan),
        accelerator=jax.default_backend() != "cpu",
        processes=_may_leave(plan),
        env_processes=_may_spread(plan),
        transport=_transport(plan),
        slots=plan.asked.slots,
    )
    return _placed(plan, plan.asked, place)


def measure(plan: Plan) -> Costs:
    """What a step, choosing actions and an update take; parts that cannot change the answer are left out."""
    num_envs, cores = plan.experiment.env.num_envs, count_cores()
    env, parallel = _within_limit(lambda: measure_env(plan), plan.experiment.limits.hang_s)
    measured = Costs(env, parallel)
    short = is_short(measured, num_envs, plan.experiment.limits.total_steps, _seconds(plan))
    if (short and _transport(plan) is None) or not (parallel or _may_leave(plan)):
        return measured
    if isinstance(plan.algorithm.experience, Individuals):
        # An update comes after thousands of steps, and only actors can act: the environments decide.
        return replace(measured, update=Cost(1e-9, 1e-9))
    measured = replace(measured, act={num_envs: measure_act(plan, num_envs)})
    if parallel and acts_cheaply(measured, num_envs):
        return measured
    for fewer in _smaller(num_envs, 2 if parallel else most_actors(measured, cores)):
        measured = replace(measured, act={**measured.act, fewer: measure_act(plan, fewer)})
    return measured if parallel else replace(measured, update=_update(plan, measured.acting(num_envs)))


def _update(plan: Plan, act: Cost) -> Cost:
    """An update's share of one round; one that would take seconds is estimated from choosing actions, `act`."""
    length = plan.algorithm.rollouts.length
    passes = GRADIENT * getattr(plan.experiment.algorithm, "num_epochs", 1)
    if isinstance(plan.algorithm.experience, Fragments) and passes * act.wall_s * length > LONG_UPDATE_S:
        return Cost(passes * act.wall_s, passes * act.core_s)
    wall_s, core_s = measure_updates(plan)
    return Cost(wall_s / length, core_s / length)


def measure_env(plan: Plan) -> tuple[Cost, bool]:
    """A step of all environments with random actions, and whether they have threads or processes of their own.

    Of those that are stepped one after the other, one is enough: it may be slow to make.
    """
    num_envs = plan.experiment.env.num_envs
    seeds = np.random.SeedSequence([plan.experiment.seed, SEED]).generate_state(num_envs) >> 1
    if plan.env.library != "envpool":
        with closing(plan.env.make_host(seeds[:1])) as env:
            if env.steps_in_send:
                wall_s, core_s = watch(_stepper(env), ENV_S)
                return Cost(wall_s * num_envs, core_s * num_envs), False
    with closing(plan.env.make_host(seeds)) as env:
        return watch(_stepper(env), ENV_S), True


def measure_act(plan: Plan, num_envs: int) -> Cost:
    """Choosing actions for the rows of so many environments, as workers do it."""
    rows = plan.env.spec.rows(num_envs)
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, rows)
    act = jit_act(plan.algorithm)
    params = jax.device_put(layouts.params.tree(layouts.params.schema.allocate()))
    fields = layouts.request.schema.fields
    request = layouts.request.tree([np.zeros((rows, *field.shape), field.dtype) for field in fields])
    jax.block_until_ready(act(params, request))  # compiles
    return watch(lambda: jax.block_until_ready(act(params, request)), ACT_S)


def measure_updates(plan: Plan) -> Cost:
    """What is learned from one fragment: one update, or as many as its steps ask for; on zeros."""
    algorithm, experience, key = plan.algorithm, plan.algorithm.experience, run_key(plan.experiment.seed)
    shapes, count = training.example(plan), 1
    if isinstance(experience, Replay):
        count = learning.updates_per_fragment(experience, plan.experiment.rows_per_update(plan.env.spec))
        fragment, rows = shapes, experience.batch_size
        shapes, _ = jax.eval_shape(
            lambda: replay.draw(experience, replay.init(experience, fragment), key, rows)  # without the memory it takes
        )
    batch = jax.tree.map(lambda field: jnp.zeros(field.shape, field.dtype), shapes)
    state = jax.jit(lambda key, hyper: algorithm.init(key, plan.env.spec, hyper))(key, plan.experiment.hyper())
    update = jit_learning(algorithm.update)
    jax.block_until_ready(update(state, batch, key))  # compiles
    once = watch(lambda: jax.block_until_ready(update(state, batch, key)), UPDATE_S)
    return Cost(count * once.wall_s, count * once.core_s)


def watch(call: Callable[[], object], seconds: float) -> Cost:
    """What one call takes, in the fastest of several blocks of calls that take about `seconds` together."""
    once = _block(call, 1)
    if once.wall_s > seconds:
        return once
    calls = max(1, int(seconds / BLOCKS / max(once.wall_s, 1e-6)))
    deadline, blocks = time.perf_counter() + seconds, []
    while len(blocks) < BLOCKS and (not blocks or time.perf_counter() < deadline):
        blocks.append(_block(call, calls))
    return min(blocks)


def _block(call: Callable[[], object], calls: int) -> Cost:
    wall, core, queued = time.perf_counter(), time.process_time(), _queued_s()
    for _ in range(calls):
        call()
    wall_s, core_s = time.perf_counter() - wall, time.process_time() - core
    # Time in which other programs had the core is neither the call's own nor spent waiting for something else.
    return Cost(max(wall_s - (_queued_s() - queued), 1e-9) / calls, core_s / calls)


def _queued_s() -> float:
    """For how long this thread could have run but had no core, since it began; where there is no Linux, 0."""
    try:
        return int(SCHEDULE.read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def _stepper(env: HostEnv) -> Callable[[], None]:
    """Steps with random actions that are legal."""
    random = np.random.default_rng(SEED)
    now = env.reset()
    now = env.step(_sample(env.spec.action, random, env.num_rows, now.mask))  # the first may take longer

    def step() -> None:
        nonlocal now
        now = env.step(_sample(env.spec.action, random, env.num_rows, now.mask))

    return step


def _sample(spec: Action, random: np.random.Generator, rows: int, mask: np.ndarray | None) -> np.ndarray:
    if isinstance(spec, Box):
        low, high = (np.reshape(side, spec.shape) for side in (spec.low, spec.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        return random.uniform(low, high, (rows, *spec.shape)).astype(np.float32)
    choices = (spec.n,) if isinstance(spec, Discrete) else spec.nvec
    scores = random.random((rows, sum(choices)))
    if mask is not None:
        scores = np.where(mask, scores, -1.0)
    parts = np.split(scores, np.cumsum(choices)[:-1], axis=1)
    picked = np.stack([part.argmax(axis=1) for part in parts], axis=1).astype(np.int32)
    return picked[:, 0] if isinstance(spec, Discrete) else picked


def _smaller(num_envs: int, parts: int) -> list[int]:
    """Powers of two below `num_envs`, as far down as the share of one of so many."""
    sizes = [1 << power for power in range(num_envs.bit_length()) if 1 << power < num_envs]
    return [size for size in reversed(sizes) if 2 * size > num_envs // parts]


def _within_limit(work: Callable[[], T], limit_s: float) -> T:
    """The result of something that a user's environment may keep from ever ending."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="calibration", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise EnvError(f"the environments took more than {limit_s:g} s for a few steps")
    return results[0]


def _seconds(plan: Plan) -> float:
    return plan.experiment.limits.wall_s or math.inf


def _transport(plan: Plan) -> TransportName | None:
    """The one that was asked for, or that evaluators need; None: any."""
    assert plan.asked is not None
    return None if plan.asked.transport == "auto" and plan.in_one_process else plan.transport


def _may_leave(plan: Plan) -> bool:
    """Whether other processes could step the environments."""
    return _transport(plan) != MEMORY.name and plan.importable and are_known_everywhere(plan.experiment, plan.env)


def _may_spread(plan: Plan) -> bool:
    """Whether `env.processes` could step the environments: those that Gymnasium makes by a name.

    Not those of individuals, which act for themselves: more of them need more actors.
    """
    return plan.env.spread and _may_leave(plan) and not isinstance(plan.algorithm.experience, Individuals)


def _placed(plan: Plan, asked: TopologyConfig, place: Placement) -> Plan:
    spec, open_plan = plan.env.spec, replace(plan.experiment, topology=asked)
    credits = credits_of_slot(open_plan, plan.algorithm)
    transport, moved = find_room(open_plan, plan.algorithm, spec, place.slots, credits, place.transport)
    check_requests(place.mode, spec.rows(plan.experiment.env.num_envs), place.slots, transport)
    served = place.inference_batch
    topology = replace(
        asked,
        mode=place.mode,
        actors=place.actors,
        slots=place.slots,
        transport=transport,
        inference_workers=max(place.inference_workers, asked.inference_workers),
        inference_batch=asked.inference_batch or (served and spec.rows(served)),
    )
    env_config = replace(plan.experiment.env, processes=place.env_processes)
    return replace(
        plan,
        experiment=replace(plan.experiment, topology=topology, env=env_config),
        env=envs.resolve(env_config) if place.env_processes else plan.env,
        mode=place.mode,
        actors=place.actors,
        slots=place.slots,
        transport=transport,
        asked=None,
        notes=(*plan.notes[:-1], f"mode {place.mode}: {place.reasons[0]}", *place.reasons[1:], *moved),
    )
