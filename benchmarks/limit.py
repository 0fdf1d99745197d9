"""How fast PPO on a host environment could be at best: cores / (env + act + update core-time of a step).

Core-time is what the process spends on all threads, measured for each part by itself with recorded actions
of the policy (the simulator's cost depends on what is played). Nothing can train faster with these parts.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import jax
import numpy as np
from podium_ppo import WORKLOADS
from window import parse

from podium.core import settings
from podium.core.types import Fragment, Tree
from podium.launch.crew import Crew
from podium.launch.plan import Plan, make_plan
from podium.launch.training import initial_state
from podium.ops.keys import run_key
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import Version
from podium.workers.layout import make_layouts


def core_seconds(function: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Core-time and wall time of one call, the mean over about `seconds`."""
    function()
    calls, core, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        function()
        calls += 1
    return (time.process_time() - core) / calls, (time.perf_counter() - wall) / calls


def main() -> None:
    arguments = parse([name for name in WORKLOADS if name.startswith("halfcheetah")])
    env, chosen = WORKLOADS[arguments.workload]
    plan = make_plan(settings.resolve("ppo", env, preset="none", overrides=chosen).experiment)
    algorithm, num_envs = plan.algorithm, plan.experiment.env.num_envs
    state = jax.jit(lambda: initial_state(plan))()["train"]
    params = algorithm.params(state)
    length, steps = plan.experiment.algorithm.fragment_length, plan.experiment.steps_per_update
    share = arguments.seconds / 4
    # Enough recorded actions that the simulator is past its first fall.
    fragments, env_act_wall = collect(plan, params, 4, share)
    fragment, played = fragments[-1], np.concatenate([fragment.action for fragment in fragments])

    pool = plan.env.make_host(np.arange(num_envs))
    pool.reset()

    def step_all() -> None:
        for t in range(length):
            pool.step(played[t])

    env_core, env_wall = core_seconds(step_all, share)
    pool.close()

    act = jax.jit(partial(algorithm.act, greedy=False))
    act_core = act_cost(act, params, fragment, plan.slots, share)
    update = jax.jit(algorithm.update)
    update_core, _ = core_seconds(lambda: jax.block_until_ready(update(state, fragment, run_key(1))), share)

    cores = os.cpu_count() or 1
    total = env_core / steps + act_core + update_core / steps
    print(
        json.dumps(
            {
                "workload": arguments.workload,
                "cores": cores,
                "env_core_us": 1e6 * env_core / steps,
                "act_core_us": 1e6 * act_core,
                "update_core_us": 1e6 * update_core / steps,
                "env_only_steps_per_s": steps / env_wall,
                "env_act_steps_per_s": steps / env_act_wall,
                "limit_steps_per_s": cores / total,
            }
        )
    )


def collect(plan: Plan, params: Tree, count: int, seconds: float) -> tuple[list[Fragment], float]:
    """Some fragments, and the wall time of one: an actor thread whose learner only gives the buffers back."""
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    assert plan.slots == 1, "a fragment is a whole batch"
    fragments: list[Fragment] = []
    with MemoryTransport() as transport:
        receiver = transport.sample_receiver(layouts.record.schema)
        publisher = transport.parameter_publisher("main", layouts.params.schema)
        publisher.publish(Version(0, 0), layouts.params.arrays(params))
        crew = Crew(plan, layouts, transport, receiver.endpoint, publisher.endpoint, 0)
        crew.warm_up()
        with crew:
            while len(fragments) < count:
                crew.check()
                if (received := receiver.receive(1.0)) is not None:
                    fragments.append(layouts.record.tree([array.copy() for array in received.arrays]).fragment)
                    received.release()
            began, collected = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                crew.check()
                if (received := receiver.receive(1.0)) is not None:
                    collected += 1
                    received.release()
            wall = (time.perf_counter() - began) / collected
        crew.close()
    return fragments, wall


def act_cost(act: Callable, params: object, fragment, slots: int, seconds: float) -> float:
    """Core-time of choosing one action, at the batch size that a slot has."""
    from podium.core.types import ActInput

    rows = fragment.valid.shape[1] // slots
    obs = fragment.obs[0, :rows]
    keys = jax.random.split(run_key(2), rows)
    inputs = ActInput(obs, np.zeros(rows, bool), None, keys, np.ones(rows, np.float32))
    core, _ = core_seconds(lambda: np.asarray(act(params, (), inputs)[0]), seconds)
    return core / rows


if __name__ == "__main__":
    main()
