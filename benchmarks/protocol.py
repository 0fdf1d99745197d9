"""Moving data between two processes: Podium's streams beside bare ZeroMQ and Ray. `podium bench protocol`.

Each contender has two processes of its own (stream_ends.py; Ray in a virtual environment of its own). They take turns,
several rounds in one run, and what counts is the ratio within a run. Let nothing else run meanwhile.
With --memory: how much both processes grow while a million samples pass.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import stream_ends
import venvs
from contest import CONSOLE, Figure, Row, heading, make_table, middle, run_alone, show_figures
from stream_ends import REQUEST, SIZES

HERE = Path(__file__).parent
LIMIT_S = 900.0
CONTENDERS = {
    "shm": "Podium shm",
    "tcp": "Podium tcp",
    "zmq-curve": "ZeroMQ, CURVE",
    "zmq": "ZeroMQ, plain",
    "ray": "Ray, put",
}
PULLED = "Ray, pulled"  # the two ways of samples through Ray: see peers/rllib_protocol.py
MEMORY_COUNT = 1_000_000
MEMORY_MOST = 10 << 20
Results = dict[str, list[Row]]


def command(contender: str, seconds: float) -> list[str]:
    """What measures this contender once."""
    sizes = [str(size) for size in SIZES]
    if contender == "ray":
        script = str(venvs.PINS / "rllib_protocol.py")
        own = [str(venvs.ensure("rllib")), script, "--request", str(REQUEST)]
    else:
        own = [sys.executable, stream_ends.__file__, contender]
    return [*own, "--seconds", str(seconds), "--sizes", *sizes]


def measure(contenders: list[str], rounds: int, seconds: float) -> Results:
    """A result of each contender for each round; they take turns."""
    results: Results = {contender: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            result = run_alone(contender, command(contender, seconds), LIMIT_S)
            results[contender].append(result)
            rates = "  ".join(f"{name(size)} {rate_of(result, size):>9,.0f}/s" for size in SIZES)
            print(f"round {number + 1}  {contender:10} {rates}  round trip {trip_of(result):>7,.0f} us", flush=True)
    return results


def name(size: int) -> str:
    """`4 KB`."""
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def rate_of(result: Row, size: int, way: str = "samples_per_s") -> float:
    """Samples/s."""
    return result[way][str(size)]


def trip_of(result: Row) -> float:
    """Microseconds of a round trip."""
    return result["round_trip"]["median_us"]


def show(results: Results) -> None:
    """Rates, bandwidths, core time and round trips."""
    title = "medians of rounds: samples/s, MB/s (core-microseconds a sample)"
    table = make_table(title, (*map(name, SIZES), f"round trip {name(REQUEST)}"))
    for contender, rows in results.items():
        trip = f"{middle(rows, trip_of):,.0f} us"
        table.add_row(CONTENDERS[contender], *(cell(rows, size, "samples_per_s") for size in SIZES), trip)
        if contender == "ray":
            table.add_row(PULLED, *(cell(rows, size, "pulled_per_s") for size in SIZES), "")
    CONSOLE.print(table)


def cell(rows: list[Row], size: int, way: str) -> str:
    """`97,120/s, 398 (21.5)`."""
    rate = middle(rows, lambda row: rate_of(row, size, way))
    core = f" ({middle(rows, lambda row: row['core_us'][str(size)]):,.1f})" if "core_us" in rows[0] else ""
    return f"{rate:,.0f}/s, {rate * size / 1e6:,.0f}{core}"


def figures(results: Results) -> Iterator[Figure]:
    """The ratios, where both sides were measured."""

    for ours, theirs, way, least in (
        ("shm", "ray", "samples_per_s", (50.0, None, 20.0)),
        ("shm", "ray", "pulled_per_s", (50.0, None, 20.0)),
        ("tcp", "zmq-curve", "samples_per_s", (0.85, 0.85, 0.85)),
        ("tcp", "zmq", "samples_per_s", (None, None, None)),
    ):
        if ours in results and theirs in results:
            for size, bound in zip(SIZES, least, strict=True):
                rate = middle(results[ours], lambda row, size=size: rate_of(row, size))
                their_rate = middle(results[theirs], lambda row, size=size, way=way: rate_of(row, size, way))
                label = PULLED if way == "pulled_per_s" else CONTENDERS[theirs]
                yield Figure(f"{CONTENDERS[ours]} / {label}, {name(size)}", rate / their_rate, bound)
    if "shm" in results and "ray" in results:
        ratio = middle(results["ray"], trip_of) / middle(results["shm"], trip_of)
        yield Figure("round trip, Ray actor call / Podium shm", ratio, 20.0)


def measure_memory(contenders: list[str], count: int) -> None:
    """Resident memory of both processes, after a twentieth of the samples and after all of them."""
    title = f"{count:,} samples of {name(stream_ends.MEMORY_SIZE)}: growth in MB"
    table = make_table(title, ("sender", "receiver", ""))
    for contender in [one for one in contenders if one in ("shm", "tcp")]:
        command = [sys.executable, stream_ends.__file__, contender, "--memory", str(count)]
        result = run_alone(contender, command, LIMIT_S)
        growth = [result["sender_bytes"], result["receiver_bytes"]]
        verdict = "bounded" if max(growth) < MEMORY_MOST else f"GROWS: {MEMORY_MOST >> 20} MB is the most"
        table.add_row(CONTENDERS[contender], *(f"{size / 2**20:.1f}" for size in growth), verdict)
    CONSOLE.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured window of each size in each round")
    parser.add_argument("--skip", nargs="+", default=[], choices=CONTENDERS, help="contenders to leave out")
    parser.add_argument("--memory", action="store_true", help="growth of memory instead of speed")
    parser.add_argument("--count", type=int, default=MEMORY_COUNT, help="samples of --memory")
    parser.add_argument("--json", type=Path, help="write every result there too")
    given = parser.parse_args()
    contenders = [contender for contender in CONTENDERS if contender not in given.skip]
    if given.memory:
        print(heading())
        measure_memory(contenders, given.count)
        return
    results = measure(contenders, given.rounds, given.seconds)
    print(f"\n{heading()}")
    show(results)
    show_figures(figures(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
