"""Ray moving the samples and requests of `protocol.py` between two processes: prints one line of JSON.

Samples go two ways. `put`: the sender puts each into the object store, and calls an actor with it. `pull`: the receiver
calls an actor's method for each, and gets what it returns, which below 100 KB does not touch the object store.
Many calls are under way in both.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import ray
from window import end_on_sigterm

CALLS = 64  # under way at once
UNDER_WAY = 8 << 20  # bytes: for large samples the lesser limit
ROWS = 16
WARM_UP_S = 1.0
LIMIT_S = 60.0


def value_of(number: int) -> float:
    """What fills sample `number`."""
    return float(number % 251)


class Batch:
    """Rows of one's own that samples are copied into."""

    def __init__(self, size: int):
        self.number = 0
        self._rows = list(np.empty((ROWS, size // 4), np.float32))

    def take(self, sample: np.ndarray) -> int:
        """Copy the next sample, and look whether it is the right one."""
        row, expected = self._rows[self.number % ROWS], value_of(self.number)
        row[...] = sample
        if row[0] != expected or row[-1] != expected:
            raise ValueError(f"sample {self.number} is {row[0]}...{row[-1]}, not {expected}")
        self.number += 1
        return self.number


@ray.remote(num_cpus=0)
class Worker:
    """The other process."""

    def prepare(self, size: int) -> None:
        self.batch = Batch(size)
        self.sample = np.empty(size // 4, np.float32)
        self.sent = 0

    def send(self) -> np.ndarray:
        self.sample.fill(value_of(self.sent))
        self.sent += 1
        return self.sample

    def take(self, sample: np.ndarray) -> int:
        return self.batch.take(sample)

    def answer(self, request: np.ndarray) -> np.ndarray:
        return request + 1


def rate_of(step: Callable[[], object], seconds: float) -> float:
    """How often it can be done in a second, after it has become warm."""
    end = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < end:
        step()
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + seconds:
        step()
        count += 1
    return count / (now - began)


def pull(worker: ray.actor.ActorHandle, size: int, seconds: float) -> float:
    """The receiver asks."""
    ray.get(worker.prepare.remote(size), timeout=LIMIT_S)
    batch = Batch(size)
    calls = deque(worker.send.remote() for _ in range(min(CALLS, UNDER_WAY // size)))

    def step() -> None:
        batch.take(ray.get(calls.popleft(), timeout=LIMIT_S))
        calls.append(worker.send.remote())

    rate = rate_of(step, seconds)
    ray.get(list(calls), timeout=LIMIT_S)
    return rate


def put(worker: ray.actor.ActorHandle, size: int, seconds: float) -> float:
    """The sender puts."""
    ray.get(worker.prepare.remote(size), timeout=LIMIT_S)
    sample = np.empty(size // 4, np.float32)
    calls: deque[ray.ObjectRef] = deque()
    most, number = min(CALLS, UNDER_WAY // size), 0

    def step() -> None:
        nonlocal number
        sample.fill(value_of(number))
        number += 1
        calls.append(worker.take.remote(ray.put(sample)))
        if len(calls) > most:
            ray.get(calls.popleft(), timeout=LIMIT_S)

    rate = rate_of(step, seconds)
    assert ray.get(list(calls), timeout=LIMIT_S)[-1] == number
    return rate


def round_trips(worker: ray.actor.ActorHandle, size: int, seconds: float) -> dict[str, float]:
    """Median and 99th percentile of single calls, in microseconds."""
    request, times, number = np.empty((1, size // 4), np.float32), [], 0

    def step() -> None:
        nonlocal number
        request.fill(value_of(number))
        start = time.perf_counter()
        reply = ray.get(worker.answer.remote(request), timeout=LIMIT_S)
        times.append(time.perf_counter() - start)
        if reply[0, 0] != value_of(number) + 1 or reply[0, -1] != value_of(number) + 1:
            raise ValueError(f"the reply to request {number} is {reply[0, 0]}...{reply[0, -1]}")
        number += 1

    rate_of(step, seconds)
    warm = times[len(times) // 2 :]
    return {"median_us": 1e6 * statistics.median(warm), "p99_us": 1e6 * sorted(warm)[int(0.99 * len(warm))]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--request", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1",
            _temp_dir=place, object_store_memory=512 << 20,
        )  # fmt: skip
        try:
            end_on_sigterm()
            worker = Worker.remote()
            ways = {
                way.__name__: {str(size): way(worker, size, given.seconds) for size in given.sizes}
                for way in (put, pull)
            }
            round_trip = round_trips(worker, given.request, given.seconds)
        finally:
            # Ends every process that `ray.init` started, and no other cluster's.
            ray.shutdown()
    result = {
        "contender": "ray",
        "version": ray.__version__,
        "samples_per_s": ways["put"],
        "pulled_per_s": ways["pull"],
        "round_trip": round_trip,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
