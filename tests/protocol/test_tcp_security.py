"""Who has no key gets nothing from a TCP stream, and does not disturb those who have."""

import socket as sockets
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import zmq

from podium.core.errors import RefusedError, StreamError
from podium.protocol.run_keys import RunKeys, secure_client
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import FragmentHeader, SampleReceiver, SampleSender
from podium.protocol.tcp import TcpTransport
from podium.protocol.tcp.wire import Hello, schema_words, words

KEYS, OTHERS = RunKeys.generate(), RunKeys.generate()
SCHEMA = Schema((Field("obs", (3,), "float32"),))
HELLO = words(Hello("samples", 1, 0, 1, 0, [4], [schema_words(SCHEMA)]))
LIMIT = 30.0


def passes(sender: SampleSender, receiver: SampleReceiver, sequence: int) -> bool:
    """Whether a fragment goes through, as it should, and nothing else does."""
    buffer = sender.acquire(LIMIT)
    assert buffer is not None
    buffer.arrays[0][:] = sequence
    sender.commit(buffer, FragmentHeader(0, sequence, Version(0, 0), 1, sequence + 1))
    received = receiver.receive(LIMIT)
    assert received is not None
    received.release()
    return received.header.sequence == sequence and bool((received.arrays[0] == sequence).all())


@pytest.fixture
def stream() -> Iterator[tuple[SampleReceiver, SampleSender]]:
    """A stream that works."""
    with TcpTransport(KEYS) as serving, TcpTransport(KEYS.for_clients()) as connecting:
        receiver = serving.sample_receiver(SCHEMA)
        sender = connecting.sample_sender(receiver.endpoint, SCHEMA, SenderId(0, 0), 2)
        assert passes(sender, receiver, 0)
        yield receiver, sender
        assert passes(sender, receiver, 1)
        assert receiver.senders() == {SenderId(0, 0): 0}
        assert receiver.counters.received == 2


def connect_samples(serving: TcpTransport, connecting: TcpTransport) -> None:
    connecting.sample_sender(serving.sample_receiver(SCHEMA).endpoint, SCHEMA, SenderId(0, 0), 2)


def connect_parameters(serving: TcpTransport, connecting: TcpTransport) -> None:
    connecting.parameter_reader(serving.parameter_publisher("main", SCHEMA).endpoint, SCHEMA)


def connect_inference(serving: TcpTransport, connecting: TcpTransport) -> None:
    server = serving.inference_server(SCHEMA, SCHEMA)
    connecting.inference_client(server.endpoint, SCHEMA, SCHEMA, SenderId(0, 0), [1], 1.0)


@pytest.mark.parametrize("connect", [connect_samples, connect_parameters, connect_inference])
def test_a_client_of_another_run_is_refused_by_every_stream(connect):
    stranger = replace(OTHERS.for_clients(), server_public=KEYS.server_public)
    serving, connecting = TcpTransport(KEYS), TcpTransport(stranger, connect_limit=LIMIT)
    with serving, connecting, pytest.raises(RefusedError, match="does not know our key"):
        connect(serving, connecting)


def hears(endpoint: str, keys: RunKeys | None) -> bool:
    """Whether a ZeroMQ client with these keys, or with none, is answered."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        if keys is not None:
            secure_client(client, keys)
        client.linger = 0
        client.connect(endpoint)
        client.send(HELLO)
        client.send(HELLO)
        return bool(client.poll(10_000 if keys is not None and keys.client_public == KEYS.client_public else 500))


def test_a_client_with_the_runs_key_is_answered(stream):
    assert hears(stream[0].endpoint, KEYS.for_clients())
    # A newer incarnation takes its place and leaves: the fixture asks who is left.
    with TcpTransport(KEYS.for_clients()) as connecting:
        connecting.sample_sender(stream[0].endpoint, SCHEMA, SenderId(1, 1), 2).close()
    end = time.monotonic() + LIMIT
    while SenderId(1, 1) in stream[0].senders():
        assert time.monotonic() < end


def test_a_client_without_the_runs_key_gets_nothing(stream):
    assert not hears(stream[0].endpoint, replace(OTHERS.for_clients(), server_public=KEYS.server_public))
    assert stream[0].counters.malformed == 0


def test_a_client_without_encryption_gets_nothing(stream):
    assert not hears(stream[0].endpoint, None)
    assert stream[0].counters.malformed == 0


def test_junk_on_the_port_gets_nothing(stream):
    receiver, _ = stream
    host, port = receiver.endpoint.removeprefix("tcp://").split(":")
    random = np.random.default_rng(0)
    for size in (1, 10, 64, 1000, 100_000):
        with sockets.create_connection((host, int(port)), timeout=LIMIT) as junk:
            try:
                junk.sendall(b"\xff" + random.bytes(size))
                junk.shutdown(sockets.SHUT_WR)
                answer = b"".join(iter(lambda junk=junk: junk.recv(4096), b""))
            except OSError:  # cut off while we still talk
                answer = b""
            assert len(answer) <= 64  # a greeting names the protocol, and nothing follows
    assert receiver.counters.malformed == 0


def test_a_client_does_not_talk_to_a_server_of_another_run():
    with TcpTransport(OTHERS) as serving, TcpTransport(KEYS.for_clients(), connect_limit=1.0) as connecting:
        publisher = serving.parameter_publisher("main", SCHEMA)
        publisher.publish(Version(0, 0), [np.zeros(3, np.float32)])
        with pytest.raises(RefusedError, match="has not the key of this run"):
            connecting.parameter_reader(publisher.endpoint, SCHEMA)
        assert publisher.counters.sent == 0


def test_a_server_that_is_not_there_is_not_taken_for_one_that_refuses():
    with sockets.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TcpTransport(KEYS.for_clients(), connect_limit=0.3) as connecting:
        with pytest.raises(StreamError, match="no answer") as error:
            connecting.parameter_reader(f"tcp://127.0.0.1:{port}", SCHEMA)
        assert not isinstance(error.value, RefusedError)


def test_an_endpoint_that_is_none_is_an_error_of_one_line():
    with TcpTransport(KEYS.for_clients()) as connecting, pytest.raises(StreamError, match="cannot connect to nonsense"):
        connecting.parameter_reader("nonsense", SCHEMA)


def test_a_host_that_is_not_ours_is_an_error_of_one_line():
    with (
        TcpTransport(KEYS, host="192.0.2.1") as serving,
        pytest.raises(StreamError, match=r"cannot listen at 192\.0\.2"),
    ):
        serving.sample_receiver(SCHEMA)


def test_a_client_cannot_serve():
    with TcpTransport(KEYS.for_clients()) as connecting, pytest.raises(ValueError, match="cannot bind"):
        connecting.sample_receiver(SCHEMA)
