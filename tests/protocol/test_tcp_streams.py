"""TCP keeps the promises of every stream, and heals what only a network can break."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import RefusedError
from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import FragmentHeader, Received, SampleReceiver, SampleSender
from podium.protocol.tcp import TcpTransport
from podium.protocol.tcp.wire import Ping, words
from podium.protocol.testing import PROMISES, Subject

KEYS = RunKeys.generate()
SMALL = Schema((Field("obs", (3, 2), "float32"), Field("reward", (3,), "float64")))
LARGE = Schema((Field("obs", (100, 1000), "float32"), Field("reward", (100,), "float64")))
LIMIT = 30.0


def make() -> tuple[TcpTransport, TcpTransport]:
    return TcpTransport(KEYS), TcpTransport(KEYS.for_clients())


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_the_promise_holds(promise):
    promise(Subject(make, keeps_unreleased=False))


class Bridge:
    """A TCP connection's way to an endpoint, which can be cut: both ends then see it broken, and connect anew."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            pair = near, socket.create_connection(self._target)
            self._pairs.append(pair)
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self.cut()
        for pair in self._pairs:
            for end in pair:
                end.close()


@pytest.fixture
def transports() -> Iterator[tuple[TcpTransport, TcpTransport]]:
    serving, connecting = make()
    with serving, connecting:
        yield serving, connecting


def header(sequence: int) -> FragmentHeader:
    return FragmentHeader(0, sequence, Version(0, 0), 1, sequence + 1)


def commit(sender: SampleSender, sequence: int, limit: float = LIMIT) -> None:
    buffer = sender.acquire(limit)
    assert buffer is not None
    for array in buffer.arrays:
        array[...] = sequence
    sender.commit(buffer, header(sequence))


def taken(receiver: SampleReceiver) -> Received:
    received = receiver.receive(LIMIT)
    assert received is not None
    return received


@pytest.mark.parametrize("schema", [SMALL, LARGE], ids=["small", "large"])
def test_samples_heal_when_a_connection_breaks(transports, schema):
    serving, connecting = transports
    receiver = serving.sample_receiver(schema)
    with contextlib.closing(Bridge(receiver.endpoint)) as bridge:
        sender = connecting.sample_sender(bridge.endpoint, schema, SenderId(0, 0), 4)
        seen, sequence, held = [], 0, None
        for cut in range(5):
            for turn in range(3):
                commit(sender, sequence)
                sequence += 1
                if cut < 4 and turn == 1:
                    bridge.cut()
            for received in drained(receiver):
                assert all((array == received.header.sequence).all() for array in received.arrays)
                seen.append(received.header.sequence)
                if held is None:
                    held = received  # not released until the end: its credit stays out, over all connections
                else:
                    received.release()
        assert seen == sorted(set(seen)), "order is kept, nothing comes twice"
        buffers = [sender.acquire(LIMIT) for _ in range(3)]
        assert None not in buffers
        assert sender.acquire(0.1) is None
        assert held is not None
        assert all((array == held.header.sequence).all() for array in held.arrays)
        held.release()
        assert sender.acquire(LIMIT) is not None


def drained(receiver: SampleReceiver) -> Iterator[Received]:
    while (received := receiver.receive(0.2)) is not None:
        yield received


def test_who_has_just_lost_its_connection_is_not_forgotten_at_once(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    with contextlib.closing(Bridge(receiver.endpoint)) as bridge:
        sender = connecting.sample_sender(bridge.endpoint, SMALL, SenderId(0, 0), 2)
        commit(sender, 0)
        taken(receiver)
    (peer,) = receiver._peers.all()
    end = time.monotonic() + LIMIT
    while receiver._router.send(peer.route, words(Ping())) != "gone":
        assert time.monotonic() < end
    receiver._peers._swept = 0.0
    assert receiver.senders() == {SenderId(0, 0): 0}, "what it has out is still known when it comes back"
    receiver._peers._swept = 0.0
    assert receiver.senders() == {}


def test_parameters_heal_when_a_connection_breaks(transports):
    serving, connecting = transports
    publisher = serving.parameter_publisher("main", SMALL)
    with contextlib.closing(Bridge(publisher.endpoint)) as bridge:
        reader = connecting.parameter_reader(bridge.endpoint, SMALL)
        for update in range(2):
            bridge.cut()
            publisher.publish(Version(0, update), [np.full(f.shape, update, f.dtype) for f in SMALL.fields])
            news = reader.read(LIMIT)
            assert news is not None
            assert news[0] == Version(0, update)


def test_inference_heals_when_a_connection_breaks(transports):
    serving, connecting = transports
    server = serving.inference_server(SMALL, SMALL)
    with contextlib.closing(Bridge(server.endpoint)) as bridge:
        client = connecting.inference_client(bridge.endpoint, SMALL, SMALL, SenderId(0, 0), [1], 0.3)
        bridge.cut()
        for turn in range(1000):
            client.submit(0, [np.full((1, *f.shape), turn, f.dtype) for f in SMALL.fields])
            if (batch := server.gather(8, 0.0, 0.2)) is not None:
                server.reply(batch, Version(0, turn), batch.arrays)
            (reply,) = client.poll(LIMIT)
            if reply.arrays is not None:
                assert (reply.arrays[0] == turn).all()
                return
        pytest.fail("requests still fail")


def test_a_release_does_not_wait_for_a_receive_that_waits(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 1)
    commit(sender, 0)
    first = taken(receiver)
    others: list[Received] = []
    waiting = threading.Thread(target=lambda: others.append(taken(receiver)))
    waiting.start()
    first.release()
    commit(sender, 1)  # needs the credit; only this ends the other thread's wait
    waiting.join(LIMIT)
    assert [received.header.sequence for received in others] == [1]


def test_a_release_reaches_its_sender_though_nobody_receives(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 16)
    for sequence in range(16):
        commit(sender, sequence)
    taken(receiver).release()
    assert sender.acquire(LIMIT) is not None
    assert sender.acquire(0.0) is None


def test_threads_that_receive_and_release_lose_nothing(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 5)
    handed: queue.Queue[Received] = queue.Queue()
    seen = []

    def release() -> None:
        while len(seen) < 1000:
            received = handed.get(timeout=LIMIT)
            seen.append(received.header.sequence)
            received.release()

    def receive() -> None:
        for _ in range(1000):
            handed.put(taken(receiver))

    threads = [threading.Thread(target=work) for work in (receive, release)]
    for thread in threads:
        thread.start()
    for sequence in range(1000):
        commit(sender, sequence)
    for thread in threads:
        thread.join(LIMIT)
    assert seen == list(range(1000))


def test_what_was_committed_arrives_after_the_senders_transport_closed():
    with TcpTransport(KEYS) as serving:
        receiver = serving.sample_receiver(LARGE)
        with TcpTransport(KEYS.for_clients()) as connecting:
            sender = connecting.sample_sender(receiver.endpoint, LARGE, SenderId(0, 0), 8)
            for sequence in range(8):
                commit(sender, sequence)
        for sequence in range(8):
            received = taken(receiver)
            assert received.header.sequence == sequence
            assert (received.arrays[0] == sequence).all()


KILLED = """
import json, os, signal, sys
from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import SenderId
from podium.protocol.tcp import TcpTransport
from podium.protocol.tcp.wire import Ping, words
from protocol.test_tcp_streams import LARGE, commit
sender = TcpTransport(RunKeys(*json.loads(sys.argv[1]))).sample_sender(sys.argv[2], LARGE, SenderId(3, 0), 4)
for sequence in range(3): commit(sender, sequence)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_sender_is_drained_and_its_next_incarnation_is_welcome(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(LARGE)
    command = [sys.executable, "-c", KILLED, json.dumps(astuple(KEYS.for_clients())), receiver.endpoint]
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    ) as child:
        first = taken(receiver)
        end = time.monotonic() + LIMIT
        while receiver.senders().get(SenderId(3, 0)) != 2:
            assert time.monotonic() < end
        child.communicate(b"\n", LIMIT)
        assert child.returncode == -signal.SIGKILL
    sender = connecting.sample_sender(receiver.endpoint, LARGE, SenderId(3, 1), 4)
    assert [taken(receiver).header.sequence for _ in range(2)] == [1, 2]
    assert (first.arrays[0] == 0).all()
    assert receiver.senders() == {SenderId(3, 1): 0}
    commit(sender, 0)
    assert taken(receiver).sender == SenderId(3, 1)


def test_frames_are_sent_once(transports):
    serving, connecting = transports
    schema = Schema((Field("obs", (9, 2, 6, 6, 4), "uint8", stack=4), Field("reward", (8, 2), "float32")))
    receiver = serving.sample_receiver(schema)
    sender = connecting.sample_sender(receiver.endpoint, schema, SenderId(0, 0), 2)
    buffer = sender.acquire(LIMIT)
    assert buffer is not None
    obs, reward = buffer.arrays
    obs[...] = np.random.default_rng(0).integers(0, 255, obs.shape)
    reward[...] = np.arange(16).reshape(8, 2)
    for step in range(1, 9):
        obs[step, ..., :-1] = obs[step - 1, ..., 1:]
    sender.commit(buffer, header(0))
    received = taken(receiver)
    assert (received.arrays[0] == obs).all()
    assert (received.arrays[1] == reward).all()
    (part,) = sender._layout.frames(buffer.arrays)
    assert len(part) == obs.nbytes // 4 + obs[0].nbytes * 3 // 4 + 3


def test_errors_of_the_caller_are_told_at_once(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
    buffer = sender.acquire(LIMIT)
    assert buffer is not None
    with pytest.raises(ValueError, match="not negative"):
        sender.commit(buffer, header(0)._replace(steps=-1))
    sender.commit(buffer, header(0))
    with pytest.raises(ValueError, match="committed already"):
        sender.commit(buffer, header(0))
    with pytest.raises(ValueError, match="credits: 0"):
        connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 0)
    with pytest.raises(ValueError, match="rows: "):
        connecting.inference_client(receiver.endpoint, SMALL, SMALL, SenderId(0, 0), [], 1.0)
    with pytest.raises(RefusedError, match="this is a samples stream, not parameters"):
        connecting.parameter_reader(receiver.endpoint, SMALL)
    with pytest.raises(ValueError, match="65535"):
        connecting.sample_sender(receiver.endpoint, SMALL, SenderId(1 << 20, 0), 2)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_fifty_thousand_fragments_leave_no_memory_behind(transports):
    serving, connecting = transports
    receiver = serving.sample_receiver(SMALL)
    sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 64)
    sequence = before = 0
    for turn in range(55):
        if turn == 5:
            before = resident()
        for _ in range(16):
            for _ in range(64):
                commit(sender, sequence)
                sequence += 1
            for expected in range(sequence - 64, sequence):
                received = taken(receiver)
                assert received.header.sequence == expected
                received.release()
    assert sequence - 5 * 1024 > 50_000
    assert resident() - before < 10_000_000
    assert receiver.counters.received == sender.counters.sent == sequence
