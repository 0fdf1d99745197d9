"""Whoever is killed, and whenever: nothing is lost that was committed, and nothing comes under another name."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import StreamError
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.shm import ShmTransport, create_directory, futex, sweep
from podium.protocol.streams import Received
from podium.protocol.testing.inference import REPLY, REQUEST, expect_answer, poll, request, serve
from protocol.shm_peers import LARGE, RECORD, SCHEMA, header, write

LIMIT = 60.0
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of shared memory."""
    owned = create_directory(f"test-{secrets.token_hex(6)}")
    yield owned.path
    owned.remove()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts peers, and leaves none behind."""
    peers: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("shm_peers.py")), *map(str, words)]
        peers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return peers[-1]

    yield start
    for peer in peers:
        kill(peer)


def kill(peer: subprocess.Popen[str]) -> None:
    """At once, wherever it is."""
    if peer.poll() is None:
        peer.send_signal(signal.SIGKILL)
        peer.wait(LIMIT)
    for pipe in (peer.stdin, peer.stdout):
        assert pipe is not None
        if not pipe.closed:
            pipe.close()


def heard(peer: subprocess.Popen[str]) -> str:
    """The next line that the peer says."""
    assert peer.stdout is not None
    line = peer.stdout.readline().strip()
    assert line, f"the peer ended with {peer.wait(LIMIT)}"
    return line


def go(peer: subprocess.Popen[str]) -> None:
    """Let a peer that pauses go on."""
    assert peer.stdin is not None
    peer.stdin.write("go\n")
    peer.stdin.flush()


def check_content(received: Received) -> None:
    """The arrays are those of this sender and sequence number."""
    mark = 1000.0 * received.sender.incarnation + received.header.sequence
    assert (received.arrays[0] == mark).all()
    assert received.arrays[1] == received.header.sequence


@pytest.mark.parametrize("committed", [2, 3])
def test_of_a_killed_sender_all_that_was_committed_comes_and_nothing_else(
    directory: Path, start: Start, committed: int
) -> None:
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    peer = start("send_two_fill_third", directory, int(committed == 3))
    assert heard(peer) == "done"
    kill(peer)
    for sequence in range(committed):
        received = receiver.receive(LIMIT)
        assert received is not None
        assert (received.sender, received.header.sequence) == (SenderId(0, 0), sequence)
        check_content(received)
        received.release()
    assert receiver.receive(0.1) is None
    ShmTransport(directory).sample_sender(f"shm:{directory}", SCHEMA, SenderId(0, 1), 1).close()
    assert receiver.senders() == {}
    assert not list(directory.glob("ring-*"))


def test_what_a_killed_receiver_held_comes_again_under_the_same_name(directory: Path, start: Start) -> None:
    sender = ShmTransport(directory).sample_sender(f"shm:{directory}", SCHEMA, SenderId(0, 7), 3)
    for sequence in range(3):
        buffer = sender.acquire(1.0)
        assert buffer is not None
        write(buffer.arrays, 7, sequence)
        sender.commit(buffer, header(sequence))
    peer = start("receive_two_release_one", directory)
    assert heard(peer) == "done"
    kill(peer)
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    for sequence in (1, 2):
        received = receiver.receive(LIMIT)
        assert received is not None
        assert (received.sender, received.header.sequence) == (SenderId(0, 7), sequence)
        check_content(received)
        received.release()
    assert receiver.receive(0.1) is None
    assert all(sender.acquire(1.0) is not None for _ in range(3)), "no credit is lost"


def test_ten_senders_killed_at_random_lose_nothing(directory: Path, start: Start, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    arrived = [0] * 10

    def take(timeout: float) -> bool:
        if (received := receiver.receive(timeout)) is None:
            return False
        incarnation = received.sender.incarnation
        assert received.header.sequence == arrived[incarnation], "in order, none missing, none twice"
        arrived[incarnation] += 1
        check_content(received)
        received.release()
        return True

    logs = [tmp_path / f"{incarnation}" for incarnation in range(10)]
    peers = [start("send", directory, incarnation, random.integers(1, 5), log) for incarnation, log in enumerate(logs)]
    for incarnation, peer in enumerate(peers):
        assert heard(peer) == "ready"
        go(peer)
        for _ in range(random.integers(1, 300)):
            assert take(LIMIT)
        kill(peer)
        while take(0.0):
            pass
        reported = logs[
            incarnation
        ].read_bytes()  # empty if it was killed after its first commit, before its first report
        assert not reported or arrived[incarnation] > RECORD.unpack(reported)[1], (
            "all that it knew to be committed has come"
        )
    assert list(receiver.senders()) == [SenderId(0, 9)], "rings of older incarnations are removed"


def test_ten_receivers_killed_at_random_lose_nothing(directory: Path, start: Start, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sender = ShmTransport(directory).sample_sender(f"shm:{directory}", SCHEMA, SenderId(0, 0), 3)
    log = tmp_path / "log"
    peers = [start("receive", directory, log) for _ in range(10)]
    sequence = 0
    for peer in peers:
        assert heard(peer) == "ready"
        go(peer)
        for _ in range(random.integers(1, 300)):
            buffer = sender.acquire(LIMIT)
            assert buffer is not None
            write(buffer.arrays, 0, sequence)
            sender.commit(buffer, header(sequence))
            sequence += 1
        kill(peer)
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    rest = []
    while (received := receiver.receive(0.0)) is not None:
        check_content(received)
        rest.append(received.header.sequence)
        received.release()
    records = list(RECORD.iter_unpack(log.read_bytes()))
    assert all(number == mark for number, mark in records), "each came whole, under its own number"
    numbers = [number for number, _ in records] + rest
    assert sorted(set(numbers)) == list(range(sequence)), "nothing is lost"
    assert len(numbers) <= sequence + 10, "a kill repeats at most what was received and not yet released"
    assert all(sender.acquire(1.0) is not None for _ in range(3)), "no credit is lost"


def test_a_publisher_killed_in_the_middle_leaves_a_whole_version(directory: Path, start: Start) -> None:
    transport = ShmTransport(directory)
    reader = None
    for incarnation in range(3):
        peer = start("publish", directory, incarnation)
        endpoint = heard(peer)
        if reader is None:
            reader = transport.parameter_reader(endpoint, LARGE)
        reader.rebind(endpoint)
        for last in (False, False, False, True):
            if last:
                kill(peer)
            news = reader.read(LIMIT if not last else 0.0)
            if not last:
                assert news is not None
            for found in (news, transport.parameter_reader(endpoint, LARGE).read()):
                if found is not None:
                    version, arrays = found
                    assert version.incarnation == incarnation
                    assert all((array == version.update).all() for array in arrays)
    assert len(list(directory.glob("policy-*"))) == 1, "what killed publishers left is removed by the next"


def test_what_a_killed_server_was_asked_fails_and_its_successor_answers(directory: Path, start: Start) -> None:
    peer = start("serve", directory, 1)
    transport = ShmTransport(directory)
    client = transport.inference_client(heard(peer), REQUEST, REPLY, SenderId(0, 0), [2], LIMIT)
    client.submit(0, request(2, 1))
    expect_answer(poll(client, [0])[0], 2, 1)
    client.submit(0, request(2, 2))
    assert heard(peer) == "silent"
    kill(peer)
    assert client.poll(0.05) == []
    server = transport.inference_server(REQUEST, REPLY)
    client.rebind(server.endpoint)
    assert poll(client, [0])[0].arrays is None
    client.submit(0, request(2, 3))
    serve(server, 2, Version(1, 0))
    expect_answer(poll(client, [0])[0], 2, 3, Version(1, 0))


def test_a_killed_client_costs_the_server_and_its_successor_nothing(directory: Path, start: Start) -> None:
    transport = ShmTransport(directory)
    server = transport.inference_server(REQUEST, REPLY)
    peer = start("ask", directory, server.endpoint, 1)
    assert heard(peer) == "asked"
    kill(peer)
    batch = server.gather(64, 0.0, LIMIT)
    assert batch is not None
    client = transport.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 2), [2], LIMIT)
    client.submit(0, request(2, 2))
    server.reply(batch, Version(0, 0), [np.zeros((2, 2), np.float32), np.zeros(2, np.uint32)])
    serve(server, 2)
    expect_answer(poll(client, [0])[0], 2, 2)
    assert len(list(directory.glob("client-*"))) == 1, "the dead client's area is removed"


def test_another_process_wakes_whoever_sleeps(directory: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "PATIENCE", LIMIT)  # so that only a wake can end the sleep in time
    monkeypatch.setattr(futex, "SPINS", 0)
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    peer = start("send", directory, 0, 1, os.devnull)
    assert heard(peer) == "ready"
    go(peer)
    for sequence in range(300):
        received = receiver.receive(LIMIT)
        assert received is not None
        assert received.header.sequence == sequence
        received.release()


def test_what_a_killed_owner_left_is_swept_and_the_living_stay(tmp_path: Path, start: Start) -> None:
    mine = create_directory("mine", tmp_path)
    (tmp_path / "podium-not-ours").mkdir()
    peer = start("own", tmp_path, "theirs")
    theirs = Path(heard(peer))
    assert sweep(tmp_path) == []
    kill(peer)
    assert sweep(tmp_path) == [theirs]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["podium-mine", "podium-not-ours"]
    mine.remove()
    mine.remove()
    assert sweep(tmp_path) == []
    assert not mine.path.exists()


def test_what_was_killed_while_it_was_made_is_swept_once_it_is_old(tmp_path: Path) -> None:
    new, old, owned = (tmp_path / f".podium-{name}" for name in ("new", "old", "owned"))
    for path in (new, old, owned):
        path.mkdir()
    (owned / "owner").touch()
    for path in (old, owned):
        os.utime(path, (0, time.time() - 3600))
    assert sweep(tmp_path) == [old, owned]
    assert list(tmp_path.iterdir()) == [new], "it may be in the making"


def test_more_than_there_is_of_shared_memory_is_an_error_in_one_line_and_leaves_nothing() -> None:
    room = os.statvfs("/dev/shm")
    large = Schema((Field("large", (2 * room.f_blocks * room.f_frsize,), "uint8"),))
    full = r"^no room in /dev/shm/podium-full-\d+: needs \d+\.\d MB, has \d+\.\d$"
    with ShmTransport(create_directory(f"full-{os.getpid()}")) as transport:
        receiver = transport.sample_receiver(large)
        before = {path.name for path in transport.directory.iterdir()}
        with pytest.raises(StreamError, match=full):
            transport.sample_sender(receiver.endpoint, large, SenderId(0, 0), 1)
        with pytest.raises(StreamError, match=full):
            transport.parameter_publisher("main", large)
        server = transport.inference_server(large, REPLY)
        with pytest.raises(StreamError, match=full):
            transport.inference_client(server.endpoint, large, REPLY, SenderId(0, 0), [1], 1.0)
        server.close()
        assert {path.name for path in transport.directory.iterdir()} == before
