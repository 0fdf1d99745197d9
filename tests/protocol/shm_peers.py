"""The other process of a test: runs one end over a directory, says on its standard output what it has done, or waits.

python shm_peers.py send DIRECTORY INCARNATION CREDITS LOG     sends as fast as it can until it is killed
"""

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.shm import ShmTransport, create_directory
from podium.protocol.streams import FragmentHeader
from podium.protocol.testing.inference import REPLY, REQUEST, answer, request

SCHEMA = Schema((Field("obs", (64,), "float64"), Field("mark", (), "int64")))
LARGE = Schema((Field("w", (300_000,), "float32"), Field("b", (5,), "float64")))
RECORD = struct.Struct("<qq")


def header(sequence: int) -> FragmentHeader:
    """Of a fragment."""
    return FragmentHeader(0, sequence, Version(0, sequence), 1, sequence + 1)


def say(word: str) -> None:
    """Tell the test where we are."""
    print(word, flush=True)


def pause() -> None:
    """Until the test says so; it may kill us first."""
    sys.stdin.readline()


def write(arrays: list[np.ndarray], incarnation: int, sequence: int) -> None:
    """Numbers that follow from who and which."""
    arrays[0][...] = 1000.0 * incarnation + sequence
    arrays[1][...] = sequence


def send(directory: Path, incarnation: int, credits: int, log: Path) -> None:
    """Send for ever; after each commit, its number goes into the log."""
    say("ready")
    pause()
    sender = ShmTransport(directory).sample_sender(f"shm:{directory}", SCHEMA, SenderId(0, incarnation), credits)
    record = os.open(log, os.O_WRONLY | os.O_CREAT)
    sequence = 0
    while True:
        if (buffer := sender.acquire(1.0)) is None:
            continue
        write(buffer.arrays, incarnation, sequence)
        sender.commit(buffer, header(sequence))
        os.pwrite(record, RECORD.pack(incarnation, sequence), 0)
        sequence += 1


def send_two_fill_third(directory: Path, commit: int) -> None:
    """Commit two; fill a third, and commit it only if told."""
    sender = ShmTransport(directory).sample_sender(f"shm:{directory}", SCHEMA, SenderId(0, 0), 4)
    for sequence in range(3):
        buffer = sender.acquire(10.0)
        assert buffer is not None
        write(buffer.arrays, 0, sequence)
        if sequence < 2 or commit:
            sender.commit(buffer, header(sequence))
    say("done")
    pause()


def receive(directory: Path, log: Path) -> None:
    """Receive for ever; each goes into the log before it is released."""
    say("ready")
    pause()
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        if (received := receiver.receive(1.0)) is None:
            continue
        first = received.arrays[0][0]
        whole = (received.arrays[0] == first).all() and received.arrays[1] == first
        os.write(record, RECORD.pack(received.header.sequence, int(first) if whole else -1))
        received.release()


def receive_two_release_one(directory: Path) -> None:
    """Hold the second."""
    receiver = ShmTransport(directory).sample_receiver(SCHEMA)
    held = [receiver.receive(10.0) for _ in range(2)]
    assert held[0] is not None
    held[0].release()
    say("done")
    pause()


def publish(directory: Path, incarnation: int) -> None:
    """Publish constant arrays of growing value for ever."""
    publisher = ShmTransport(directory).parameter_publisher("main", LARGE)
    arrays = LARGE.allocate()
    update = 0
    while True:
        update += 1
        for array in arrays:
            array[...] = update
        publisher.publish(Version(incarnation, update), arrays)
        if update == 3:
            say(publisher.endpoint)


def serve(directory: Path, answers: int) -> None:
    """Answer so many batches, then take one and be silent."""
    server = ShmTransport(directory).inference_server(REQUEST, REPLY)
    say(server.endpoint)
    for _ in range(answers):
        batch = server.gather(64, 0.0, 30.0)
        assert batch is not None
        server.reply(batch, Version(0, 0), answer(batch.arrays))
    server.gather(64, 0.0, 30.0)
    say("silent")
    pause()


def ask(directory: Path, endpoint: str, incarnation: int) -> None:
    """Ask once and wait to be killed."""
    client = ShmTransport(directory).inference_client(endpoint, REQUEST, REPLY, SenderId(0, incarnation), [2], 30.0)
    client.submit(0, request(2, incarnation))
    say("asked")
    pause()


def own(root: Path, name: str) -> None:
    """Own a directory."""
    say(str(create_directory(name, root).path))
    pause()


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (send, send_two_fill_third, receive, receive_two_release_one, publish, serve, ask, own)
}

if __name__ == "__main__":
    role = ROLES[sys.argv[1]]
    kinds = list(role.__annotations__.values())
    role(*(kind(text) for kind, text in zip(kinds, sys.argv[2:], strict=False)))
