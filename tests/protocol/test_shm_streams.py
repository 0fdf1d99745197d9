"""Shared memory keeps every promise of a transport, and some of its own."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.core.errors import RefusedError, StreamError
from podium.protocol.schema import ALIGNMENT, Field, Schema, SenderId, Version
from podium.protocol.shm import ShmTransport, create_directory
from podium.protocol.shm import transport as shm_transport
from podium.protocol.shm.ring import attach_ring
from podium.protocol.streams import FragmentHeader, Transport
from podium.protocol.testing import PROMISES, Subject
from podium.protocol.testing.inference import REPLY, REQUEST, answer, expect_answer, poll, request
from podium.protocol.testing.parameters import WEIGHTS, constant
from podium.protocol.testing.samples import SMALL, fill, header, receive, same, send


def connected() -> tuple[Transport, Transport]:
    """The owner's transport, and another's over the same directory."""
    owned = create_directory(f"test-{secrets.token_hex(6)}")
    return ShmTransport(owned), ShmTransport(owned.path)


@pytest.fixture
def transport() -> Iterator[ShmTransport]:
    """A transport over a directory of its own."""
    with ShmTransport(create_directory(f"test-{secrets.token_hex(6)}")) as transport:
        yield transport


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_shared_memory_keeps(promise: Callable[[Subject], None]) -> None:
    promise(Subject(connected))


def test_jit_reads_a_fragment_in_place_and_no_sender_writes_over_it(transport: ShmTransport) -> None:
    schema = Schema((Field("x", (1 << 16,), "float32"),))
    receiver = transport.sample_receiver(schema)
    sender = transport.sample_sender(receiver.endpoint, schema, SenderId(0, 0), 2)
    total = jax.jit(lambda x: jnp.sum(jnp.sin(x) ** 2))
    expected = None
    for sequence in range(2):
        buffer = sender.acquire(1.0)
        assert buffer is not None
        buffer.arrays[0][...] = np.arange(1 << 16) % 7 + sequence
        sender.commit(buffer, FragmentHeader(0, sequence, Version(0, 0), 1, 1))
    first, second = receive(receiver), receive(receiver)
    alias = jax.device_put(first.arrays[0], may_alias=True)
    assert alias.unsafe_buffer_pointer() == first.arrays[0].ctypes.data, "XLA reads the ring's memory itself"
    expected = float(total(np.arange(1 << 16, dtype=np.float32) % 7))
    second.release()
    for attempt in range(20):
        running = total(alias)
        if (buffer := sender.acquire(0.0)) is not None:
            buffer.arrays[0][...] = -1
            assert attempt == 0, "only the released buffer can be had"
        assert float(running) == expected
    first.release()
    assert sender.acquire(1.0) is not None


def test_arrays_lie_where_xla_can_read_them(transport: ShmTransport) -> None:
    schema = Schema((Field("a", (3,), "uint8"), Field("b", (5,), "float64"), Field("c", (), "bool")))
    receiver = transport.sample_receiver(schema)
    sender = transport.sample_sender(receiver.endpoint, schema, SenderId(0, 0), 3)
    for _ in range(3):
        buffer = sender.acquire(1.0)
        assert buffer is not None
        assert all(array.ctypes.data % ALIGNMENT == 0 for array in buffer.arrays)


def test_senders_are_served_in_turn(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    for worker in range(3):
        sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(worker, 0), 4)
        for sequence in range(4):
            send(sender, receiver, sequence)
    order = [receive(receiver).sender.worker for _ in range(12)]
    assert order == [0, 1, 2] * 4


def test_releasing_twice_does_not_free_what_came_after(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 1)
    send(sender, receiver, 0)
    first = receive(receiver)
    first.release()
    send(sender, receiver, 1)
    first.release()
    assert sender.acquire(0.0) is None
    assert same(SMALL, receive(receiver).arrays, 1)


def test_a_sender_may_come_before_its_receiver(transport: ShmTransport) -> None:
    sender = transport.sample_sender(f"shm:{transport.directory}", SMALL, SenderId(0, 0), 2)
    other = Schema((Field("else", (1,), "float32"),))
    stranger = transport.sample_sender(f"shm:{transport.directory}", other, SenderId(1, 0), 2)
    buffer = sender.acquire(1.0)
    assert buffer is not None
    fill(buffer, SMALL, 0)
    sender.commit(buffer, header(0))
    receiver = transport.sample_receiver(SMALL)
    assert same(SMALL, receive(receiver).arrays, 0)
    with pytest.raises(RefusedError, match="2 arrays against 1"):
        stranger.acquire(0.0)
    assert receiver.counters.refused == 1


def test_a_sender_follows_its_receiver_to_another_directory_with_what_it_has_in_hand(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
    send(sender, receiver, 0)
    in_hand = sender.acquire(1.0)
    assert in_hand is not None
    fill(in_hand, SMALL, 1)
    with ShmTransport(create_directory(f"test-{secrets.token_hex(6)}")) as elsewhere:
        successor = elsewhere.sample_receiver(SMALL)
        sender.rebind(successor.endpoint)
        sender.commit(in_hand, header(1))
        received = receive(successor)
        assert received.header == header(1)
        assert same(SMALL, received.arrays, 1)
        received.release()
        assert [sender.acquire(1.0) is not None for _ in range(2)] == [True, True]
    assert same(SMALL, receive(receiver).arrays, 0), "what the old receiver had is still in its reach"


def test_files_are_readable_by_their_user_alone_and_gone_in_the_end(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
    publisher = transport.parameter_publisher("main", WEIGHTS)
    publisher.publish(Version(0, 0), constant(1))
    reader = transport.parameter_reader(publisher.endpoint, WEIGHTS)
    assert stat.S_IMODE(transport.directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in transport.directory.iterdir()}
    assert len(modes) == 5
    assert set(modes.values()) == {0o600}
    transport.close()
    assert not transport.directory.exists()
    news = reader.read()
    assert news is not None, "what is mapped stays usable"
    with pytest.raises(StreamError, match="is not there: its owner has gone"):
        ShmTransport(transport.directory)


def test_a_file_that_is_no_segment_is_counted_and_costs_nobody_else_anything(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    (transport.directory / "ring-8-0").write_bytes(b"")
    (transport.directory / "ring-9-0").write_bytes(os.urandom(4096))
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
    (transport.directory / "ring-7-0").write_bytes(
        (transport.directory / "ring-0-0").read_bytes()[:512]
    )  # shorter than it says
    other = transport.sample_sender(receiver.endpoint, SMALL, SenderId(1, 0), 2)
    send(sender, receiver, 0)
    send(other, receiver, 0)
    assert sorted(receive(receiver).sender.worker for _ in range(2)) == [0, 1]
    assert receiver.counters.malformed == 3


def test_a_fragment_that_makes_no_sense_is_counted_and_its_credit_goes_back(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
    ring = attach_ring(transport.directory, SenderId(0, 0))
    assert receiver.receive(0.0) is None  # it knows the sender: what comes later is found by the queue
    for sequence in range(4):
        buffer = sender.acquire(1.0)
        assert buffer is not None, "no credit is lost"
        sender.commit(buffer, header(sequence))
        ring.queue[sequence % 2] = 7
        assert receiver.receive(0.0) is None
        assert receiver.counters.malformed == sequence + 1
    assert [sender.acquire(1.0) is not None for _ in range(2)] == [True, True]
    sender.close()
    assert receiver.senders() == {}


def test_versions_must_grow(transport: ShmTransport) -> None:
    publisher = transport.parameter_publisher("main", WEIGHTS)
    publisher.publish(Version(1, 5), constant(1))
    for older in (Version(1, 5), Version(1, 4), Version(0, 9)):
        with pytest.raises(ValueError, match="is not newer than"):
            publisher.publish(older, constant(2))


def test_a_batch_keeps_its_arrays_until_it_is_answered(transport: ShmTransport) -> None:
    server = transport.inference_server(REQUEST, REPLY)
    client = transport.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 0), [2, 2], 30.0)
    batches = []
    for slot in range(2):
        client.submit(slot, request(2, slot + 1))
        batches.append(server.gather(64, 0.0, 1.0))
    for slot, batch in enumerate(batches):
        assert batch is not None
        assert np.array_equal(batch.arrays[0], request(2, slot + 1)[0])
        server.reply(batch, Version(0, 0), answer(batch.arrays))
    for slot, reply in poll(client, [0, 1]).items():
        expect_answer(reply, 2, slot + 1)


def test_an_older_client_is_refused_and_so_are_other_schemas(transport: ShmTransport) -> None:
    server = transport.inference_server(REQUEST, REPLY)
    transport.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 2), [2], 1.0)
    with pytest.raises(RefusedError, match="was replaced by"):
        transport.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 1), [2], 1.0)
    with pytest.raises(RefusedError, match="2 arrays against 3"):
        transport.inference_client(server.endpoint, REQUEST, REQUEST, SenderId(1, 0), [2], 1.0)
    server.close()
    with pytest.raises(StreamError, match="no inference server at"):
        transport.inference_client(server.endpoint, REQUEST, REPLY, SenderId(1, 0), [2], 1.0)


def test_many_fragments_leave_no_memory_behind(transport: ShmTransport) -> None:
    receiver = transport.sample_receiver(SMALL)
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 4)

    def pass_on(count: int) -> None:
        for sequence in range(count):
            buffer = sender.acquire(0.0)
            assert buffer is not None
            buffer.arrays[0][...] = sequence
            sender.commit(buffer, FragmentHeader(0, sequence, Version(0, sequence), 1, sequence))
            received = receiver.receive(0.0)
            assert received is not None
            received.release()

    pass_on(10_000)
    before = resident_bytes()
    pass_on(200_000)
    assert resident_bytes() - before < 10 * 2**20


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_without_a_futex_the_error_names_what_to_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_transport, "AVAILABLE", False)
    with pytest.raises(StreamError, match="use transport tcp or memory"):
        ShmTransport(tmp_path)


def test_a_name_that_is_taken_is_an_error_in_one_line(tmp_path: Path) -> None:
    owned = create_directory("run", tmp_path)
    with pytest.raises(StreamError, match="podium-run cannot be made: Directory not empty"):
        create_directory("run", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["podium-run"]
    owned.remove()
