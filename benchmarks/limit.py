"""How fast PPO on a host environment could be at best, and how near training comes to it, both in the same seconds.

The limit is cores / (env + act + update core-time of a step): core-time is what the process spends on all threads,
measured with recorded actions of the policy (the simulator's cost depends on what is played). Nothing can train faster
with these parts. A machine may change its speed from one second to the next, so training and
the parts take turns, about a second each, in one process.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import threading
from contextlib import ExitStack

import jax
import numpy as np
from podium_ppo import WORKLOADS
from window import Window, parse

import podium
from podium.core import settings
from podium.core.types import ActInput, Fragment, Tree
from podium.launch.builders import Site, build_actor
from podium.launch.plan import Plan, make_plan
from podium.launch.program import make_program
from podium.launch.training import initial_state
from podium.launch.wiring import Wiring
from podium.ops.compiling import jit_learning
from podium.ops.random_keys import run_key
from podium.protocol.directory import Registration
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.workers.layout import make_layouts

PARTS = ("env", "act", "update")
TURN_S = 1.0
QUIET_LIMIT_S = 10.0


class Turn(NamedTuple):
    """What a second of training and a second of its parts gave; core-time in microseconds a step."""

    training: float
    env: float
    act: float
    update: float

    @property
    def limit(self) -> float:
        return 1e6 * (os.cpu_count() or 1) / (self.env + self.act + self.update)


class Parts:
    """Simulator, policy and update of a plan, without what Podium puts around them."""

    def __init__(self, plan: Plan, state: Tree, fragment: Fragment):
        assert plan.slots == 1, "a fragment is a whole batch"
        self.rows, self.steps = plan.num_rows, plan.experiment.rows_per_update(plan.env.spec)
        self.actions = fragment.action
        self.pool = plan.env.make_host(np.arange(self.rows))
        self.pool.reset()
        params, keys = plan.algorithm.params(state), jax.random.split(run_key(2), self.rows)
        seen = ActInput(fragment.obs[0], np.zeros(self.rows, bool), None, keys, np.ones(self.rows, np.float32))
        act, update = jax.jit(partial(plan.algorithm.act, greedy=False)), jit_learning(plan.algorithm.update)
        self.act = lambda: np.asarray(act(params, (), seen)[0])
        self.update = lambda: jax.block_until_ready(update(state, fragment, run_key(1)))
        self.act(), self.update()

    def env_only(self, seconds: float) -> float:
        """Steps a second, of the simulator alone."""
        calls, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.pool.step(self.actions[calls % len(self.actions)])
            calls += 1
        return calls * self.rows / (time.perf_counter() - began)

    def core_us(self, seconds: float) -> tuple[float, float, float]:
        """Core-microseconds of a step in the simulator, the policy and the update, the mean over about `seconds`.

        The policy comes after each step of the simulator, as in training: alone it would find everything in the cache.
        """
        calls, env, act, began = 0, 0.0, 0.0, time.perf_counter()
        while time.perf_counter() - began < seconds / 2:
            first = time.process_time()
            self.pool.step(self.actions[calls % len(self.actions)])
            second = time.process_time()
            self.act()
            env, act, calls = env + second - first, act + time.process_time() - second, calls + 1
        updates, core, began = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - began < seconds / 2:
            self.update()
            updates += 1
        update = (time.process_time() - core) / updates
        return 1e6 * env / calls / self.rows, 1e6 * act / calls / self.rows, 1e6 * update / self.steps


def wait_until_quiet() -> None:
    """Until the actor has used up its credit and sleeps; this thread, the learner's, is not training."""
    limit = time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < limit:
        core = time.process_time()
        time.sleep(0.1)
        if time.process_time() - core < 0.005:
            return
    raise SystemExit(f"limit: the actor still computes after {QUIET_LIMIT_S:g} s without a learner")


def take_turns(env: str, chosen: dict[str, Any], parts: Parts, seconds: float) -> list[Turn]:
    """Train as a user does; after each second of it the learner holds still for a turn of the parts."""
    turns: list[Turn] = []
    # What the actor had collected meanwhile is trained on before the next second is counted.
    window = Window(warm_up=8, seconds=TURN_S)

    def mark(row: dict[str, Any]) -> bool:
        nonlocal window
        window.mark(row["step"])
        if window.closed:
            wait_until_quiet()
            turns.append(Turn(window.env_steps / window.seconds, *parts.core_us(TURN_S)))
            window = Window(warm_up=4, seconds=TURN_S)
        return len(turns) * TURN_S < seconds

    with tempfile.TemporaryDirectory() as root:
        podium.train("ppo", env, preset="none", set=chosen, root=root, on_report=mark, progress=False)
    return turns


def main() -> None:
    arguments = parse([name for name in WORKLOADS if name.startswith("halfcheetah")])
    env, chosen = WORKLOADS[arguments.workload]
    plan = make_plan(settings.resolve("ppo", env, preset="none", overrides=chosen).experiment)
    state = jax.jit(lambda: initial_state(plan))()["train"]
    fragment, env_act = collect(plan, plan.algorithm.params(state), TURN_S)
    parts = Parts(plan, state, fragment)
    env_only = parts.env_only(TURN_S)
    turns = take_turns(env, chosen, parts, arguments.seconds)
    parts.pool.close()
    line = {
        "peer": "limit",
        "version": "",
        "workload": arguments.workload,
        "note": f"{os.cpu_count()} cores, training in each turn: "
        + " ".join(f"{100 * turn.training / turn.limit:.0f} %" for turn in turns),
        **{f"{name}_core_us": statistics.median(getattr(turn, name) for turn in turns) for name in PARTS},
        "env_only": env_only,
        "env_act": env_act,
        "training": statistics.median(turn.training for turn in turns),
        "steps_per_s": statistics.median(turn.limit for turn in turns),
        "of_limit": statistics.median(turn.training / turn.limit for turn in turns),
    }
    print(json.dumps(line))


def collect(plan: Plan, params: Tree, seconds: float) -> tuple[Fragment, float]:
    """A fragment, and steps a second of env + act: an actor thread whose learner only gives the buffers back."""
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    program, me, stop = make_program(plan), SenderId(0, 0), threading.Event()
    with MemoryTransport() as transport, ExitStack() as stack:
        learner = Wiring(program, "learner", me, transport, lambda role, count: [], stack)
        receiver, publisher = learner.receive_samples(), learner.publish_parameters()
        publisher.publish(Version(0, 0), layouts.params.arrays(params))
        there = Registration("learner", 0, 0, "", 0, learner.endpoints, ready=True)
        wiring = Wiring(program, "actor", me, transport, lambda role, count: [there], stack)
        actor = build_actor(Site(plan, layouts, wiring, me, stack, stop))
        actor.warm_up()
        thread = threading.Thread(target=actor.run, args=(stop,), daemon=True)
        thread.start()
        fragment, began, collected = None, time.perf_counter(), 0
        while fragment is None or time.perf_counter() - began < seconds:
            assert thread.is_alive()
            if (received := receiver.receive(1.0)) is not None:
                if fragment is None:
                    fragment = layouts.record.tree([array.copy() for array in received.arrays]).fragment
                    began = time.perf_counter()
                else:
                    collected += 1
                received.release()
        rate = collected * plan.experiment.rows_per_update(plan.env.spec) / (time.perf_counter() - began)
        stop.set()
        thread.join()
    return fragment, rate


if __name__ == "__main__":
    main()
