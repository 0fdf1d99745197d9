"""One experiment in several topologies, and what a ring of environment slots gains. `podium bench topology`.

places   PPO on HalfCheetah, 16 environments x 128 steps, in one process, distributed, and served over shm and tcp
actors   16 Python environments that take 2 ms a step, waiting or computing: two actor processes against one
replay   SAC on HalfCheetah, an update for each step, and DQN on Pong from pixels, one for every fourth: the buffer on
         the learner's device, and streamed from a replay worker
ring     one actor whose environments (one a slot) compute 1 ms or 10 ms a step, and whose actions take 5 ms to choose

Every run is `podium.train`, in a process of its own; runs take turns, and what counts is the ratio within one run of
this benchmark. Let nothing else run meanwhile.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contest import CONSOLE, Figure, Row, heading, make_table, middle, run_alone, show_figures

LIMIT_S = 300.0
WARM_UP = 4  # updates before the window opens: the first ones wait for workers that still compile
SLOTS = (1, 2, 4, 8)
STEPS_MS = (1, 10)

SMALL = {
    "network.hidden": [64, 64],
    "network.activation": "tanh",
    "evaluation.episodes": 0,
    "checkpoint.every_s": 1e6,
    "limits.total_steps": 10**9,
}
HALFCHEETAH = SMALL | {
    "env.num_envs": 16,
    "algorithm.fragment_length": 128,
    "algorithm.num_epochs": 10,
    "algorithm.minibatch_size": 256,
}
PYTHON = SMALL | {
    "env.num_envs": 16,
    "env.kwargs": {"ms": 2.0},
    "algorithm.fragment_length": 16,
    "algorithm.num_epochs": 4,
    "algorithm.minibatch_size": 128,
    "topology.mode": "inline",
    "topology.transport": "shm",
}
RING = SMALL | {
    "algorithm.fragment_length": 32,
    "algorithm.num_epochs": 1,
    "algorithm.minibatch_size": 32,
    "algorithm.delay_ms": 5.0,
    "topology.mode": "served",
    "topology.actors": 1,
    "topology.inference_wait_ms": 0.0,
    "topology.transport": "shm",
}
SAC = SMALL | {
    "network.hidden": [256, 256],
    "network.activation": "relu",
    "env.num_envs": 8,
    "algorithm.fragment_length": 8,
    "algorithm.batch_size": 256,
}
PIXELS = SMALL | {
    "network.hidden": [512],
    "network.activation": "relu",
    "env.num_envs": 8,
    "algorithm.fragment_length": 32,
    "algorithm.batch_size": 32,
    "algorithm.update_ratio": 0.25,
    "algorithm.buffer_size": 20_000,
}
KEEPERS = {
    "on the device": {"topology.mode": "inline", "topology.replay_workers": 0},
    "streamed": {"topology.mode": "inline", "topology.replay_workers": 1},
}


class Work(NamedTuple):
    """What one run trains."""

    algorithm: str
    env: str
    settings: dict[str, Any]


def place(mode: str, actors: int, slots: int, transport: str) -> Work:
    """HalfCheetah somewhere."""
    topology = {"mode": mode, "actors": actors, "slots": slots, "transport": transport}
    settings = HALFCHEETAH | {f"topology.{name}": value for name, value in topology.items()}
    return Work("ppo", "HalfCheetah-v5", settings)


PARTS: dict[str, dict[str, Work]] = {
    "places": {
        "one process": place("inline", 1, 1, "memory"),
        "distributed inline, shm": place("inline", 2, 2, "shm"),
        "served, shm": place("served", 2, 4, "shm"),
        "served, tcp": place("served", 2, 4, "tcp"),
    },
    "actors": {
        f"{kind}, {n} actor(s)": Work("ppo", f"artificial:make_{kind}", PYTHON | {"topology.actors": n})
        for kind in ("waiting", "busy")
        for n in (1, 2)
    },
    "replay": {
        f"{algorithm}, {keeper}": Work(algorithm, env, settings | KEEPERS[keeper])
        for algorithm, env, settings in (("sac", "HalfCheetah-v5", SAC), ("dqn", "envpool:Pong-v5", PIXELS))
        for keeper in KEEPERS
    },
    "ring": {
        f"{ms} ms, {slots} slot(s)": Work(
            "artificial:delayed_ppo",
            "artificial:make_busy",
            RING | {"env.num_envs": slots, "topology.slots": slots, "env.kwargs": {"ms": float(ms)}},
        )
        for ms in STEPS_MS
        for slots in SLOTS
    },
}


class Comparison(NamedTuple):
    """Two runs of a part, and how much the first one's rate should be of the other's at least; None: to be seen."""

    part: str
    run: str
    against: str
    least: float | None


COMPARISONS = (
    Comparison("places", "distributed inline, shm", "one process", 0.9),
    Comparison("places", "served, shm", "one process", None),
    Comparison("places", "served, tcp", "one process", None),
    Comparison("actors", "waiting, 2 actor(s)", "waiting, 1 actor(s)", 1.7),
    Comparison("actors", "busy, 2 actor(s)", "busy, 1 actor(s)", 1.7),
    Comparison("replay", "sac, streamed", "sac, on the device", None),
    Comparison("replay", "dqn, streamed", "dqn, on the device", None),
    Comparison("ring", "1 ms, 8 slot(s)", "1 ms, 1 slot(s)", 4.0),
    Comparison("ring", "10 ms, 8 slot(s)", "10 ms, 1 slot(s)", None),
)

Results = dict[str, list[Row]]


def train(work: Work, seconds: float) -> dict[str, float]:
    """Train until the window is full; its rate, and the part of the time that actors had nothing to step."""
    import podium

    rows: list[dict[str, Any]] = []

    def watch(row: dict[str, Any]) -> bool:
        if row.get("gradient_updates", 1):  # 0 until a replay buffer holds enough
            rows.append(row)
        return len(rows) <= WARM_UP or row["wall_s"] - rows[WARM_UP - 1]["wall_s"] < seconds

    with tempfile.TemporaryDirectory() as root:
        options: dict[str, Any] = {"preset": "none", "track": (), "progress": False, "root": root}
        run = podium.train(work.algorithm, work.env, set=work.settings, on_report=watch, **options)
        summary = run.summary
    first, last = rows[WARM_UP - 1], rows[-1]
    samples = summary["samples"]
    if samples["unexplained"] or samples["lost"] or sum(summary["restarts"].values()):
        raise SystemExit(f"the run lost samples or workers: {samples}, restarts {summary['restarts']}")
    waits = [sum(parts) for row in rows[WARM_UP:] if (parts := list(idle_parts(row)))]
    return {
        "steps_per_s": (last["step"] - first["step"]) / (last["wall_s"] - first["wall_s"]),
        "seconds": last["wall_s"] - first["wall_s"],
        "idle": statistics.mean(waits) if waits else float("nan"),
        "staleness": summary["staleness"]["mean"],
    }


def idle_parts(row: dict[str, Any]) -> Iterator[float]:
    """Of the first actor's time: waited for actions, and for credit. A row has it once a second."""
    for name in ("wait_inference", "wait_credit"):
        if f"actor-0/{name}" in row:
            yield row[f"actor-0/{name}"]


def measure(parts: list[str], rounds: int, seconds: float) -> dict[str, Results]:
    """A result of each run for each round, in turns. The ring needs half the rounds: most of its time is waited."""
    results: dict[str, Results] = {part: {name: [] for name in PARTS[part]} for part in parts}
    for number in range(rounds):
        for part in parts:
            if part == "ring" and number >= (rounds + 1) // 2:
                continue
            for name in PARTS[part]:
                command = [sys.executable, __file__, "--one", part, name, "--seconds", str(seconds)]
                result = run_alone(name, command, LIMIT_S)
                results[part][name].append(result)
                print(f"round {number + 1}  {part:7} {name:25} {result['steps_per_s']:>9,.0f} steps/s", flush=True)
    return results


def rate(rows: list[Row]) -> float:
    """Steps/s, the median over the rounds."""
    return middle(rows, lambda row: row["steps_per_s"])


def show(part: str, results: Results) -> None:
    """Rates of one part, each beside the run that it is compared with."""
    columns = ("steps/s", "least", "most", "ratio", "actor idle", "staleness")
    table = make_table(f"{part}: env steps/s trained, median of rounds", columns)
    for name, rows in results.items():
        rates = [row["steps_per_s"] for row in rows]
        base = first_like(name, list(results))
        ratio = "" if base == name else f"{rate(rows) / rate(results[base]):.2f}x"
        idle, staleness = (middle(rows, lambda row, key=key: row[key]) for key in ("idle", "staleness"))
        shown = "" if idle != idle else f"{100 * idle:.0f} %"
        spread = f"{min(rates):,.0f}", f"{max(rates):,.0f}"
        table.add_row(name, f"{rate(rows):,.0f}", *spread, ratio, shown, f"{staleness:.2f}")
    CONSOLE.print(table)


def first_like(name: str, names: list[str]) -> str:
    """The run that this one is compared with: the first of its kind, or of its part."""
    kind = name.partition(",")[0]
    same = [other for other in names if other.partition(",")[0] == kind]
    return names[0] if kind in ("distributed inline", "served") else same[0]


def figures(results: dict[str, Results]) -> Iterator[Figure]:
    """The ratios of what was measured."""
    for part, name, against, least in COMPARISONS:
        if part in results:
            yield Figure(f"{name} / {against}", rate(results[part][name]) / rate(results[part][against]), least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured window of each run")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write every result there too")
    parser.add_argument("--one", nargs=2, metavar=("PART", "RUN"), help="this run only, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        part, name = arguments.one
        print(json.dumps(train(PARTS[part][name], arguments.seconds)), flush=True)
        return
    results = measure(arguments.part, arguments.rounds, arguments.seconds)
    print(f"\n{heading()}")
    for part in arguments.part:
        show(part, results[part])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if not show_figures(figures(results)):
        print("figures were missed: is anything else running?")


if __name__ == "__main__":
    main()
