"""Two processes of one contender of `protocol.py`: this one binds, and starts another one that connects to it.

    python benchmarks/stream_ends.py shm --seconds 1          # prints one line of JSON: samples/s by size, round trip
    python benchmarks/stream_ends.py tcp --memory 1000000     # ... : growth of resident memory of both, in bytes

Contenders: Podium's `shm` and `tcp`, and what `tcp` is built on, bare: `zmq-curve` and `zmq`. For all of them the
sender writes every number of every sample; the receiver copies it into a batch of its own, and looks whether it is
the right one.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq

from podium.protocol.run_keys import RunKeys, authenticated, secure_client, secure_server
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.shm import ShmTransport, create_directory
from podium.protocol.streams import FragmentHeader, Transport
from podium.protocol.tcp import TcpTransport

CONTENDERS = ("shm", "tcp", "zmq-curve", "zmq")
SIZES = (4 << 10, 64 << 10, 1 << 20)
REQUEST = 1 << 10
HIGH_WATER_MARK = 1000  # ZeroMQ's own default
UNDER_WAY = 8 << 20  # bytes that one end may hold: for large samples, the least of these limits
SHM_CREDITS = 64
ROWS = 16  # of the receiver's batch
WARM_UP_S = 0.3
LIMIT_S = 60.0
MEMORY_SIZE = 4 << 10

Take = Callable[[np.ndarray], None]  # the next sample, copied there
Send = Callable[[int], None]  # write sample number n, and send it
Answer = Callable[[float], bool]  # answer a request; False if none came in so many seconds
Ask = Callable[[np.ndarray, np.ndarray], None]  # send the first, wait for the reply, copy it into the second


class Bound(NamedTuple):
    """The end that the other process connects to."""

    endpoint: str
    run: Any  # Take or Answer


def most_held(size: int) -> int:
    """Samples of so many bytes that a bare socket holds, at either end."""
    return min(HIGH_WATER_MARK, UNDER_WAY // size)


def value_of(number: int) -> float:
    """What fills sample `number`."""
    return float(number % 251)


# Podium


def transport(contender: str, place: Path, binds: bool) -> Transport:
    keys = msgspec.json.decode((place / "keys").read_bytes(), type=RunKeys)
    if contender == "tcp":
        return TcpTransport(keys if binds else keys.for_clients())
    return ShmTransport(create_directory(place.name) if binds else Path("/dev/shm", f"podium-{place.name}"))


def sample_schema(size: int) -> Schema:
    return Schema((Field("obs", (size // 4,), "float32"),))


@contextmanager
def podium_receiver(contender: str, place: Path, size: int) -> Iterator[Bound]:
    with transport(contender, place, binds=True) as streams:
        receiver = streams.sample_receiver(sample_schema(size))

        def take(row: np.ndarray) -> None:
            received = receiver.receive(LIMIT_S)
            assert received is not None, "no sample in time"
            row[...] = received.arrays[0]
            received.release()

        yield Bound(receiver.endpoint, take)
        receiver.close()


@contextmanager
def podium_sender(contender: str, place: Path, endpoint: str, size: int) -> Iterator[Send]:
    with transport(contender, place, binds=False) as streams:
        # Over tcp as many may be under way as between bare sockets, where both ends hold some.
        credits = 2 * most_held(size) if contender == "tcp" else min(SHM_CREDITS, most_held(size))
        sender = streams.sample_sender(endpoint, sample_schema(size), SenderId(0, 0), credits)

        def send(number: int) -> None:
            buffer = sender.acquire(LIMIT_S)
            assert buffer is not None, "no credit in time"
            buffer.arrays[0].fill(value_of(number))
            sender.commit(buffer, FragmentHeader(0, number, Version(0, 0), 1, number + 1))

        yield send
        sender.close()


@contextmanager
def podium_server(contender: str, place: Path) -> Iterator[Bound]:
    schema = sample_schema(REQUEST)
    with transport(contender, place, binds=True) as streams:
        server = streams.inference_server(schema, schema)

        def answer(timeout: float) -> bool:
            batch = server.gather(max_rows=1, wait=0.0, timeout=timeout)
            if batch is None:
                return False
            server.reply(batch, Version(0, 0), [batch.arrays[0] + 1])
            return True

        yield Bound(server.endpoint, answer)
        server.close()


@contextmanager
def podium_client(contender: str, place: Path, endpoint: str) -> Iterator[Ask]:
    schema = sample_schema(REQUEST)
    with transport(contender, place, binds=False) as streams:
        client = streams.inference_client(endpoint, schema, schema, SenderId(0, 0), rows=[1], limit=LIMIT_S)

        def ask(request: np.ndarray, reply: np.ndarray) -> None:
            client.submit(0, [request])
            while not (replies := client.poll(LIMIT_S)):
                pass
            arrays = replies[0].arrays
            assert arrays is not None, "no reply in time"
            reply[...] = arrays[0]

        yield ask
        client.close()


# Bare ZeroMQ


@contextmanager
def zmq_socket(contender: str, place: Path, kind: int, endpoint: str | None, size: int) -> Iterator[zmq.Socket]:
    """Bound to a free port of this machine if there is no endpoint, else connected."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(kind))
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(option, most_held(size))
        for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
            socket.setsockopt(option, int(LIMIT_S * 1000))
        socket.setsockopt(zmq.LINGER, 0)
        if contender == "zmq-curve":
            keys = msgspec.json.decode((place / "keys").read_bytes(), type=RunKeys)
            if endpoint is None:
                stack.enter_context(authenticated(context, keys))
                secure_server(socket, keys)
            else:
                secure_client(socket, keys)
        if endpoint is None:
            socket.bind("tcp://127.0.0.1:*")
        else:
            socket.connect(endpoint)
        yield socket


@contextmanager
def zmq_receiver(contender: str, place: Path, size: int) -> Iterator[Bound]:
    with zmq_socket(contender, place, zmq.PULL, None, size) as socket:

        def take(row: np.ndarray) -> None:
            row[...] = np.frombuffer(socket.recv(copy=False).buffer, np.float32)

        yield Bound(socket.get_string(zmq.LAST_ENDPOINT), take)


@contextmanager
def zmq_sender(contender: str, place: Path, endpoint: str, size: int) -> Iterator[Send]:
    with zmq_socket(contender, place, zmq.PUSH, endpoint, size) as socket:
        # Without a copy the array is ZeroMQ's until it is sent: there are more of them than can be under way.
        copy = size < 64 << 10
        samples = [np.empty(size // 4, np.float32) for _ in range(1 if copy else 4 * UNDER_WAY // size)]

        def send(number: int) -> None:
            sample = samples[number % len(samples)]
            sample.fill(value_of(number))
            socket.send(sample.data, copy=copy)

        yield send


@contextmanager
def zmq_server(contender: str, place: Path) -> Iterator[Bound]:
    with zmq_socket(contender, place, zmq.ROUTER, None, REQUEST) as socket:

        def answer(timeout: float) -> bool:
            if not socket.poll(int(timeout * 1000)):
                return False
            client, request = socket.recv_multipart()
            socket.send_multipart([client, (np.frombuffer(request, np.float32) + 1).data])
            return True

        yield Bound(socket.get_string(zmq.LAST_ENDPOINT), answer)


@contextmanager
def zmq_client(contender: str, place: Path, endpoint: str) -> Iterator[Ask]:
    with zmq_socket(contender, place, zmq.DEALER, endpoint, REQUEST) as socket:

        def ask(request: np.ndarray, reply: np.ndarray) -> None:
            socket.send(request.data)
            reply[...] = np.frombuffer(socket.recv(), np.float32)

        yield ask


# What is measured


class Samples:
    """Takes samples one after the other, and knows which one must come."""

    def __init__(self, take: Take, size: int) -> None:
        self.number = 0
        self._take = take
        self._rows = list(np.empty((ROWS, size // 4), np.float32))

    def next(self) -> None:
        row, expected = self._rows[self.number % ROWS], value_of(self.number)
        self._take(row)
        if row[0] != expected or row[-1] != expected:
            raise SystemExit(f"sample {self.number} is {row[0]}...{row[-1]}, not {expected}")
        self.number += 1

    def next_for(self, seconds: float) -> float:
        """As many as come in that time; their rate."""
        began, before = time.perf_counter(), self.number
        while (now := time.perf_counter()) < began + seconds:
            self.next()
        return (self.number - before) / (now - began)


def measure_round_trips(ask: Ask, seconds: float) -> dict[str, float]:
    """Median and 99th percentile of single ones, in microseconds."""
    request, reply = np.empty((1, REQUEST // 4), np.float32), np.empty((1, REQUEST // 4), np.float32)
    times: list[float] = []
    began = time.perf_counter()
    number = 0
    while (start := time.perf_counter()) < began + WARM_UP_S + seconds:
        request.fill(value_of(number))
        ask(request, reply)
        if start > began + WARM_UP_S:
            times.append(time.perf_counter() - start)
        if reply[0, 0] != value_of(number) + 1 or reply[0, -1] != value_of(number) + 1:
            raise SystemExit(f"the reply to request {number} is {reply[0, 0]}...{reply[0, -1]}")
        number += 1
    return {"median_us": 1e6 * statistics.median(times), "p99_us": 1e6 * sorted(times)[int(0.99 * len(times))]}


def cpu_seconds(pid: int) -> float:
    """Core time that a process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    """Of this process, shared memory included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Growth:
    """Resident memory from a point where all is warm to the end."""

    def __init__(self, count: int) -> None:
        self._warm = count // 20
        self._before = 0

    def mark(self, number: int) -> None:
        if number == self._warm:
            self._before = resident_bytes()

    def bytes(self) -> int:
        return resident_bytes() - self._before


# The two processes


def connect(contender: str, place: Path, endpoint: str, size: int, seconds: float, count: int | None) -> None:
    """The process that connects. `size` 0: it asks, for so many seconds; else it sends until it is told to end."""
    bare = contender.startswith("zmq")
    if size == 0:
        with (zmq_client if bare else podium_client)(contender, place, endpoint) as ask:
            print(json.dumps(measure_round_trips(ask, seconds)), flush=True)
        return
    growth = Growth(count or sys.maxsize)
    number = 0
    with (zmq_sender if bare else podium_sender)(contender, place, endpoint, size) as send:
        while count is None or number < count:
            send(number)
            growth.mark(number)
            number += 1
        print(growth.bytes(), flush=True)
        sys.stdin.read()  # what was sent last may still be under way: leave when the receiver has it


@contextmanager
def other_process(
    contender: str, place: Path, endpoint: str, size: int, seconds: float, count: int | None
) -> Iterator[subprocess.Popen]:
    """Start the process that connects; it is gone afterwards."""
    command = [sys.executable, __file__, contender, "--connect", endpoint, "--place", str(place), "--size", str(size)]
    command += ["--seconds", str(seconds)] + ([] if count is None else ["--memory", str(count)])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=LIMIT_S)


def measure(contender: str, place: Path, sizes: list[int], seconds: float) -> dict[str, Any]:
    """Samples/s of each size, and the round trip."""
    bare = contender.startswith("zmq")
    rates, core_us = {}, {}
    for size in sizes:
        with (
            (zmq_receiver if bare else podium_receiver)(contender, place, size) as bound,
            other_process(contender, place, bound.endpoint, size, seconds, None) as sender,
        ):
            samples = Samples(bound.run, size)
            samples.next_for(WARM_UP_S)
            processes = (os.getpid(), sender.pid)
            before, number = [cpu_seconds(pid) for pid in processes], samples.number
            rates[str(size)] = samples.next_for(seconds)
            spent = sum(cpu_seconds(pid) for pid in processes) - sum(before)
            core_us[str(size)] = 1e6 * spent / (samples.number - number)
    with (
        (zmq_server if bare else podium_server)(contender, place) as bound,
        other_process(contender, place, bound.endpoint, 0, seconds, None) as client,
    ):
        while bound.run(0.2) or client.poll() is None:
            pass
        assert client.stdout is not None
        if client.returncode:
            raise SystemExit(f"{contender}: the client ended with code {client.returncode}")
        round_trip = json.loads(client.stdout.read())
    return {"contender": contender, "samples_per_s": rates, "core_us": core_us, "round_trip": round_trip}


def measure_memory(contender: str, place: Path, count: int) -> dict[str, Any]:
    """Growth of both processes over so many samples."""
    growth = Growth(count)
    with (
        podium_receiver(contender, place, MEMORY_SIZE) as bound,
        other_process(contender, place, bound.endpoint, MEMORY_SIZE, 0.0, count) as sender,
    ):
        samples = Samples(bound.run, MEMORY_SIZE)
        for number in range(count):
            samples.next()
            growth.mark(number)
        assert sender.stdout is not None
        return {
            "contender": contender,
            "count": count,
            "sender_bytes": int(sender.stdout.readline()),
            "receiver_bytes": growth.bytes(),
        }


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that all is closed
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--memory", type=int, metavar="COUNT")
    for own in ("--connect", "--place", "--size"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.connect:
        with suppress(KeyboardInterrupt):
            connect(given.contender, Path(given.place), given.connect, int(given.size), given.seconds, given.memory)
        return
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as name:
        place = Path(name)
        (place / "keys").write_bytes(msgspec.json.encode(RunKeys.generate()))
        if given.memory:
            result = measure_memory(given.contender, place, given.memory)
        else:
            result = measure(given.contender, place, given.sizes, given.seconds)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
