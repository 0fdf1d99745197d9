"""Streams of several hosts: every promise holds by both ways, and when a peer comes back on another host."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import StreamError
from podium.protocol.nearest import NearestTransport
from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.shm.directories import create_directory
from podium.protocol.shm.transport import ShmTransport
from podium.protocol.streams import FragmentHeader, Received, SampleReceiver
from podium.protocol.tcp import TcpTransport
from podium.protocol.testing import PROMISES, Subject

KEYS = RunKeys.generate()
SMALL = Schema((Field("obs", (3,), "float32"),))
LIMIT = 30.0


def open_host(name: str, tmp_path: Path) -> NearestTransport:
    directory = create_directory(f"{name}", tmp_path)
    return NearestTransport(name, ShmTransport(directory), TcpTransport(KEYS))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("where", ["one host", "two hosts"])
def test_the_promise_holds(promise, where: str, tmp_path: Path) -> None:
    def make() -> tuple[NearestTransport, NearestTransport]:
        serving = open_host("alpha", tmp_path)
        if where == "two hosts":
            return serving, open_host("beta", tmp_path)
        same = NearestTransport("alpha", ShmTransport(serving._shm.directory), TcpTransport(KEYS))
        return serving, same

    promise(Subject(make, keeps_unreleased=where == "one host"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[NearestTransport, NearestTransport]]:
    with open_host("alpha", tmp_path) as alpha, open_host("beta", tmp_path) as beta:
        yield alpha, beta


def header(sequence: int) -> FragmentHeader:
    return FragmentHeader(0, sequence, Version(0, sequence), 3, 3 * (sequence + 1))


def receive(receiver: SampleReceiver) -> Received:
    received = receiver.receive(LIMIT)
    assert received is not None
    return received


def test_fragments_of_this_host_come_through_memory_and_those_of_others_over_tcp(hosts) -> None:
    alpha, beta = hosts
    with ExitStack() as stack:
        receiver = alpha.sample_receiver(SMALL)
        stack.callback(receiver.close)
        senders = [
            host.sample_sender(receiver.endpoint, SMALL, SenderId(i, 0), 2) for i, host in enumerate((alpha, beta))
        ]
        for i, sender in enumerate(senders):
            stack.callback(sender.close)
            buffer = sender.acquire(LIMIT)
            assert buffer is not None
            buffer.arrays[0][:] = i
            sender.commit(buffer, header(0))
        assert [type(sender._connection.end).__name__ for sender in senders] == ["ShmSampleSender", "TcpSampleSender"]
        found = {}
        for _ in range(2):
            received = receive(receiver)
            found[received.sender.worker] = received.arrays[0].tolist()
            received.release()
        assert found == {0: [0, 0, 0], 1: [1, 1, 1]}
        assert set(receiver.senders()) == {SenderId(0, 0), SenderId(1, 0)}
        assert receiver.counters.received == 2


def test_a_fragment_begun_before_the_receiver_moved_to_another_host_arrives_there(hosts) -> None:
    alpha, beta = hosts
    with ExitStack() as stack:
        first = alpha.sample_receiver(SMALL)
        sender = alpha.sample_sender(first.endpoint, SMALL, SenderId(0, 0), 2)
        stack.callback(sender.close)
        begun, free = sender.acquire(LIMIT), sender.acquire(LIMIT)
        assert begun is not None
        assert free is not None
        begun.arrays[0][:] = [1, 2, 3]
        first.close()
        second = beta.sample_receiver(SMALL)
        stack.callback(second.close)
        sender.rebind(second.endpoint)
        assert sender.acquire(0.0) is None, "two credits are two credits, whatever end they are of"
        sender.commit(begun, header(0))
        received = receive(second)
        assert received.arrays[0].tolist() == [1, 2, 3]
        received.release()
        assert sender.acquire(LIMIT) is not None
        free.arrays[0][:] = [4, 5, 6]
        sender.commit(free, header(1))
        assert receive(second).arrays[0].tolist() == [4, 5, 6]
        with pytest.raises(ValueError, match="committed already"):
            sender.commit(free, header(2))


def test_parameters_grow_and_requests_fail_in_time_when_their_server_moves_to_another_host(hosts) -> None:
    alpha, _ = hosts
    with ExitStack() as stack:
        publishers = [host.parameter_publisher("main", SMALL) for host in hosts]
        servers = [host.inference_server(SMALL, SMALL) for host in hosts]
        reader = alpha.parameter_reader(publishers[0].endpoint, SMALL)
        client = alpha.inference_client(servers[0].endpoint, SMALL, SMALL, SenderId(0, 0), [1, 1], LIMIT)
        for end in (*publishers, *servers, reader, client):
            stack.callback(end.close)
        publishers[0].publish(Version(0, 5), [np.zeros(3, np.float32)])
        news = reader.read(LIMIT)
        assert news is not None
        client.submit(1, [np.ones((1, 3), np.float32)])
        publishers[1].publish(Version(0, 4), [np.ones(3, np.float32)])
        reader.rebind(publishers[1].endpoint)
        client.rebind(servers[1].endpoint)
        assert [(reply.slot, reply.arrays) for reply in client.poll(LIMIT)] == [(1, None)]
        assert reader.read(0.2) is None, "an older version is not read after a newer one"
        publishers[1].publish(Version(1, 4), [np.full(3, 2, np.float32)])
        news = reader.read(LIMIT)
        assert news is not None
        assert news[0] == Version(1, 4)
        client.submit(0, [np.ones((1, 3), np.float32)])
        batch = servers[1].gather(8, 0.0, LIMIT)
        assert batch is not None
        servers[1].reply(batch, Version(1, 4), [np.full((1, 3), 7, np.float32)])
        (reply,) = client.poll(LIMIT)
        assert reply.arrays is not None
        assert reply.arrays[0].tolist() == [[7, 7, 7]]


def test_an_endpoint_of_one_transport_is_refused_in_one_line(hosts) -> None:
    with pytest.raises(StreamError, match="is not one of several hosts"):
        hosts[0].parameter_reader("tcp://127.0.0.1:1", SMALL)
