"""How fast ES is: `podium bench es`, or some of its parts, as in `podium bench es --part fused actors`.

fused     Podium and evosax on the same work, in turns: CartPole as a JAX environment, population 256 x 500 steps
actors    Podium with one actor process and with two, 16 environments of Gymnasium's CartPole in each
learner   individuals a second that a learner takes in and learns from, as if 1,000 actors sent them

What counts is a ratio within one run. Let nothing else run meanwhile.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import threading

import contest
import jax
import numpy as np
import venvs
from window import Window, report

import podium
from podium.algorithms.algorithm import Individuals
from podium.core.settings import resolve
from podium.launch import training
from podium.launch.builders import Site, build_learner
from podium.launch.plan import make_plan
from podium.launch.program import make_program
from podium.launch.wiring import Wiring
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId
from podium.protocol.streams import FragmentHeader
from podium.workers.layout import make_layouts

LIMIT_S = 900.0
PARTS = ("fused", "actors", "learner")
SAME: dict[str, Any] = {
    "algorithm.population": 256,
    "algorithm.episode_limit": 500,
    "algorithm.sigma": 0.1,
    "algorithm.learning_rate": 0.03,
    "algorithm.weight_decay": 0.0,
    "network.hidden": [64, 64],
    "evaluation.episodes": 0,
    "limits.total_steps": 10**9,
}
ENDLESS = {"env.kwargs": {"theta_threshold_radians": 1e9, "x_threshold": 1e9}}
"""No pole falls: so every individual plays all its steps, as the peer's always do."""


def measure_fused(seconds: float) -> None:
    """Podium's part, in a process of its own: prints the peers' line."""
    window = Window(warm_up=8, seconds=seconds)

    def mark(row: dict[str, Any]) -> bool:
        window.mark(row["step"])
        return not window.closed

    settings = {**SAME, **ENDLESS, "topology.dispatch": 4}
    with tempfile.TemporaryDirectory() as root:
        how = {"preset": "none", "set": settings, "root": root, "progress": False, "track": ()}
        podium.train("es", "gymnax:CartPole-v1", on_report=mark, **how)
    report("podium", version("podium-rl"), "cartpole-256", window, "population 256 x 500 steps, 64x64 tanh")


def compare(rounds: int, seconds: float) -> None:
    """Podium beside evosax, in turns."""
    commands = {
        "podium": [sys.executable, __file__, "--one", "--seconds", str(seconds)],
        "evosax": [str(venvs.ensure("evosax")), str(venvs.script("evosax", "es")), "--seconds", str(seconds)],
    }
    contest.show_rates("cartpole-256", contest.run_in_turns({"cartpole-256": commands}, rounds)["cartpole-256"])


def compare_actors(rounds: int, seconds: float) -> None:
    """One actor process and two, each with 16 environments that it steps itself."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for actors, found in rates.items():
            settings = {**SAME, "env.num_envs": 16 * actors, "topology.actors": actors, "topology.transport": "shm"}
            settings |= {"limits.wall_s": 10 * seconds, "topology.staleness": 4}
            window = Window(warm_up=4, seconds=seconds)

            def mark(row: dict[str, Any], window: Window = window) -> bool:
                window.mark(row["step"])
                return not window.closed

            with tempfile.TemporaryDirectory() as root:
                how = {"preset": "none", "set": settings, "root": root, "progress": False, "track": ()}
                podium.train("es", "gymnasium:CartPole-v1", on_report=mark, **how)
            found.append(window.env_steps / window.seconds)
            print(f"actors  round {number + 1}  {actors} actor(s) {found[-1]:>12,.0f} env steps/s", flush=True)
    one, two = (statistics.median(found) for found in rates.values())
    print(f"actors  two {two:,.0f}, one {one:,.0f} env steps/s: {two / one:.2f}x")


def measure_learner(seconds: float, actors: int = 1000, population: int = 40_000) -> None:
    """The real receiver, account, update and publisher; only what actors play is made up."""
    settings = {**SAME, "algorithm.population": population, "env.num_envs": actors, "topology.mode": "inline"}
    settings |= {"topology.slots": actors, "topology.actors": actors, "topology.transport": "memory"}
    plan = make_plan(resolve("es", "CartPole-v1", preset=None, overrides=settings).experiment)
    experience = plan.algorithm.experience
    assert isinstance(experience, Individuals)
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    state, random = jax.jit(lambda: training.initial_state(plan))(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root, MemoryTransport() as transport, ExitStack() as stack:
        me = SenderId(0, 0)
        wiring = Wiring(make_program(plan), "learner", me, transport, lambda role, count: [], stack)
        site = Site(plan, layouts, wiring, me, stack, threading.Event(), accounting=Path(root))
        learner = build_learner(site, state, updates=0, env_steps=0)
        endpoint = wiring.endpoints["samples"]
        learner.warm_up()
        batch = layouts.record.schema.fields[0].shape[0]
        a_population = -(-population // (batch * actors))
        senders = [
            transport.sample_sender(endpoint, layouts.record.schema, SenderId(actor, 0), a_population)
            for actor in range(actors)
        ]
        spent, individuals, sequence, produced = 0.0, 0, 0, 0
        while spent < seconds:
            for _ in range(a_population):
                steps = 0
                for sender in senders:
                    buffer = sender.acquire(1.0)
                    assert buffer is not None
                    records = layouts.record.tree(buffer.arrays)
                    records.index[...] = random.integers(0, experience.last_index + 1, batch)
                    records.sign[...] = np.where(np.arange(batch) % 2, -1, 1)
                    records.returns[...] = random.normal(size=batch)
                    records.lengths[...], records.version[...] = 200, learner.version.update
                    steps = 200 * batch
                    header = FragmentHeader(0, sequence, learner.version, steps, produced + steps)
                    sender.commit(buffer, header)
                sequence, produced = sequence + 1, produced + steps
            began = time.perf_counter()
            learned = learner.step(LIMIT_S)
            spent += time.perf_counter() - began
            assert learned is not None
            individuals += len(learned.episodes)
    size = experience.size
    note = f"{actors:,} senders, {batch} individuals a message, population {population:,}, {size:,} parameters"
    print(f"learner {individuals / spent:,.0f} individuals/s ({note})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--one", action="store_true", help="measure Podium's own part of `fused` here; nothing else")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured window of each contender in each round")
    arguments = parser.parse_args()
    if arguments.one:
        return measure_fused(arguments.seconds)
    print(contest.heading(), flush=True)
    for part in arguments.part:
        match part:
            case "fused":
                compare(arguments.rounds, arguments.seconds)
            case "actors":
                compare_actors(arguments.rounds, arguments.seconds)
            case "learner":
                measure_learner(arguments.seconds)
    return None


if __name__ == "__main__":
    main()
