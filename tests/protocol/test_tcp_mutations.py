"""What a client with the key may send by mistake or malice: refused, counted, and nobody else's trouble."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import zmq

from podium.protocol.run_keys import RunKeys, secure_client
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import Counters, FragmentHeader, Transport
from podium.protocol.tcp import TcpTransport
from podium.protocol.tcp.wire import (
    NONE,
    TO_CLIENT,
    AnswerMessage,
    Bye,
    Credit,
    Fetch,
    FragmentMessage,
    Hello,
    RequestMessage,
    Welcome,
    parse,
    schema_words,
    words,
)

KEYS = RunKeys.generate()
SCHEMA = Schema((Field("obs", (3, 4), "float32"), Field("reward", (5,), "float64")))
FRAMES = Schema((*SCHEMA.fields, Field("pixels", (4, 2, 3, 4), "uint8", stack=4)))
GOOD = 5000  # the good client's worker: no mutation of a Hello names it
COUNT = 10_000
LIMIT = 60.0


@contextmanager
def evil(endpoint: str) -> Iterator[zmq.Socket]:
    """A client that has the run's key, and no manners."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        secure_client(socket, KEYS.for_clients())
        socket.linger, socket.sndtimeo, socket.rcvtimeo = 0, int(LIMIT * 1000), int(LIMIT * 1000)
        socket.connect(endpoint)
        yield socket


def until(done: Callable[[], bool], what: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.001)


class Samples:
    """A sample stream with a good sender."""

    hello = Hello("samples", 1, 0, 17, 0, [4], [schema_words(SCHEMA)])
    block = SCHEMA.nbytes
    words = (3, 7, [("main", 0, 7, (0, 1), 5, 5)])

    def __init__(self, serving: Transport, connecting: Transport) -> None:
        self.receiver = serving.sample_receiver(SCHEMA)
        self.sender = connecting.sample_sender(self.receiver.endpoint, SCHEMA, SenderId(GOOD, 0), 2)
        self.endpoint, self.counters, self.sent = self.receiver.endpoint, self.receiver.counters, 0

    def works(self) -> bool:
        buffer = self.sender.acquire(LIMIT)
        assert buffer is not None
        buffer.arrays[0][:] = self.sent
        self.sender.commit(buffer, FragmentHeader(0, self.sent, Version(0, 0), 1, self.sent + 1))
        received = self.receiver.receive(LIMIT)
        assert received is not None
        received.release()
        self.sent += 1
        whose = received.sender == SenderId(GOOD, 0) and received.header.sequence == self.sent - 1
        return whose and bool((received.arrays[0] == self.sent - 1).all())


class Parameters:
    """A parameter stream with a good reader."""

    hello = Hello("parameters", 0, 0, 17, 0, [], [schema_words(SCHEMA)])
    block = 0
    words = (4, (0, 0))

    def __init__(self, serving: Transport, connecting: Transport) -> None:
        self.publisher = serving.parameter_publisher("main", SCHEMA)
        self.reader = connecting.parameter_reader(self.publisher.endpoint, SCHEMA)
        self.endpoint, self.counters, self.version = self.publisher.endpoint, self.publisher.counters, 0

    def works(self) -> bool:
        self.version += 1
        self.publisher.publish(
            Version(0, self.version), [np.full(f.shape, self.version, f.dtype) for f in SCHEMA.fields]
        )
        news = self.reader.read(LIMIT)
        return news is not None and news[0].update == self.version and bool((news[1][1] == self.version).all())


class Inference:
    """An inference stream with a good client."""

    hello = Hello("inference", 1, 0, 17, 0, [2], [schema_words(SCHEMA), schema_words(SCHEMA)])
    block = 2 * sum(field.nbytes for field in SCHEMA.fields)
    words = (5, 0, 7)

    def __init__(self, serving: Transport, connecting: Transport) -> None:
        self.server = serving.inference_server(SCHEMA, SCHEMA)
        self.client = connecting.inference_client(
            self.server.endpoint, SCHEMA, SCHEMA, SenderId(GOOD, 0), [1, 2], LIMIT
        )
        self.endpoint, self.counters, self.asked = self.server.endpoint, self.server.counters, 0

    def works(self) -> bool:
        self.asked += 1
        self.client.submit(1, [np.full((2, *f.shape), self.asked, f.dtype) for f in SCHEMA.fields])
        batch = self.server.gather(64, 0.0, LIMIT)
        assert batch is not None
        self.server.reply(batch, Version(0, self.asked), batch.arrays)
        (reply,) = self.client.poll(LIMIT)
        return reply.slot == 1 and reply.arrays is not None and bool((reply.arrays[0] == self.asked).all())


STREAMS = [Samples, Parameters, Inference]
Stream = Samples | Parameters | Inference


@contextmanager
def streaming(kind: Callable[[Transport, Transport], Stream]) -> Iterator[Stream]:
    with TcpTransport(KEYS) as serving, TcpTransport(KEYS.for_clients()) as connecting:
        yield kind(serving, connecting)


def closed(text: bytes) -> bytes:
    """Words with their length."""
    return text + len(text).to_bytes(4, "little")


class Mutator:
    """Messages that are none, each wrong in one way: never by chance right."""

    def __init__(self, stream: Stream, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.block, self.words = bytes(stream.block), list(stream.words)
        self.hello = words(stream.hello)
        self.good = self.block + self.said(self.words)

    def said(self, content: object) -> bytes:
        return closed(msgspec.msgpack.encode(content))

    def __call__(self) -> list[bytes]:
        ways = (self.shorter, self.longer, self.parts, self.noise, self.bad_msgpack, self.kinds, self.types, self.sizes)
        return ways[self.random.integers(len(ways))]()

    def shorter(self) -> list[bytes]:
        good = self.good if self.random.random() < 0.5 else self.hello
        return [good[: self.random.integers(len(good))]]

    def longer(self) -> list[bytes]:
        return [self.good + b"\xff" * int(self.random.integers(4, 100))]

    def parts(self) -> list[bytes]:
        return [self.good if self.random.random() < 0.5 else self.hello] * int(self.random.integers(2, 9))

    def noise(self) -> list[bytes]:
        return [self.random.bytes(int(self.random.integers(2000))) + b"\xff"]

    def bad_msgpack(self) -> list[bytes]:
        return [self.block + closed(b"\xc1" + self.random.bytes(int(self.random.integers(60))))]

    def kinds(self) -> list[bytes]:
        kind = int(self.random.choice([-1, 0, 6, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2**31, 2**63 - 1]))
        return [self.block + self.said([kind, *self.words[1:]])]

    def types(self) -> list[bytes]:
        wrong = [None, "x", b"x", 1.5, -1, -(2**63), 2**64 - 1, True, [], {}, {"a": 1}, [[[[[]]]]], "x" * 500]
        strange = wrong[self.random.integers(len(wrong))]
        content = [*self.words, 0] if self.random.random() < 0.3 else list(self.words)
        if len(content) == len(self.words):
            content[self.random.integers(len(content))] = strange
        if strange == "x" * 500:
            content = [1, *content[1:], strange]
        return [self.block + self.said(strange if self.random.random() < 0.3 else content)]

    def sizes(self) -> list[bytes]:
        size = int(self.random.choice([n for n in (0, 1, 7, 64, 1000, 100_000) if n != len(self.block)]))
        return [bytes(size) + self.said(self.words)]


@pytest.mark.parametrize("kind", STREAMS)
def test_ten_thousand_mutated_messages_are_counted_and_disturb_nobody(kind, caplog):
    caplog.set_level(logging.WARNING)
    with streaming(kind) as stream, evil(stream.endpoint) as socket:
        assert stream.works()
        mutated, begin = Mutator(stream), time.monotonic()
        socket.send(mutated.hello)
        assert isinstance(parse(TO_CLIENT, socket.recv())[0], Welcome)
        for number in range(COUNT):
            socket.send_multipart(mutated())
            if number % 1000 == 500:
                assert stream.works()
        until(lambda: stream.counters.malformed >= COUNT, lambda: stream.counters)
        assert stream.works()
        assert stream.counters.malformed == COUNT
        assert stream.counters.refused == 0
        assert 1 <= len(caplog.records) <= time.monotonic() - begin + 1
        assert "malformed message from" in caplog.text


@pytest.mark.parametrize("kind", STREAMS)
def test_flipped_bytes_crash_nothing(kind):
    random = np.random.default_rng(0)
    with streaming(kind) as stream:
        mutated = Mutator(stream)
        for session, message in ((100, mutated.hello), (101, mutated.good)):
            with evil(stream.endpoint) as socket:
                socket.send(mutated.hello)
                for _ in range(2000):
                    flipped = np.frombuffer(message, np.uint8).copy()
                    flipped[-random.integers(1, min(len(flipped), 60) + 1)] ^= random.integers(1, 256)
                    socket.send(flipped.tobytes())
                last = msgspec.structs.replace(stream.hello, session=session, incarnation=1 << 61)
                socket.send(words(Bye()))
                socket.send(words(last))  # when this one is known, all before it were taken
                until(lambda session=session: session in sessions(stream), lambda: stream.counters)
        assert stream.counters.malformed > 1000
        take_leftovers(stream)
        assert stream.works()


def sessions(stream: Stream) -> set[int]:
    if isinstance(stream, Samples):
        stream.receiver.senders()
    end = {Samples: "receiver", Parameters: "publisher", Inference: "server"}[type(stream)]
    return {peer.session for peer in getattr(stream, end)._peers.all()}


def take_leftovers(stream: Stream) -> None:
    """Take what flipped messages that were still right have left."""
    if isinstance(stream, Samples):
        while (received := stream.receiver.receive(0.2)) is not None:
            received.release()
    elif isinstance(stream, Inference):
        while stream.server.gather(64, 0.0, 0.2) is not None:
            pass


@pytest.mark.parametrize("kind", STREAMS)
def test_nothing_is_taken_before_hello(kind):
    with streaming(kind) as stream, evil(stream.endpoint) as socket:
        socket.send(Mutator(stream).good)
        until(lambda: stream.counters.malformed == 1, lambda: stream.counters)
        assert stream.works()


@pytest.mark.parametrize("kind", STREAMS)
def test_a_message_beyond_any_size_ends_its_connection_only(kind):
    with streaming(kind) as stream, evil(stream.endpoint) as socket:
        socket.send(words(stream.hello))
        socket.recv()
        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.send(bytes(1 << 24))
        assert events.poll(LIMIT * 1000)
        socket.disable_monitor()
        events.close()
        assert stream.works()
        assert stream.counters.malformed == 0


def test_a_connection_has_one_name():
    with streaming(Samples) as stream, evil(stream.endpoint) as socket:
        socket.send(words(stream.hello))
        socket.recv()
        socket.send(words(msgspec.structs.replace(stream.hello, worker=2, session=3)))
        until(lambda: stream.counters.malformed == 1, lambda: stream.counters)


def test_more_fragments_than_credits_and_old_numbers_are_refused():
    header = FragmentHeader(0, 0, Version(0, 0), 1, 1)
    with streaming(Samples) as stream, evil(stream.endpoint) as socket:
        assert isinstance(stream, Samples)
        socket.send(words(stream.hello))
        socket.recv()
        for number in (3, 3, 2, 4, 5, 6, 7, 8):
            socket.send(bytes(SCHEMA.nbytes) + words(FragmentMessage(number, header)))
        until(lambda: stream.counters.malformed == 4, lambda: stream.counters)
        assert stream.receiver.senders()[SenderId(1, 0)] == 4


def test_a_fragment_with_wrong_numbers_or_size_is_refused():
    header = FragmentHeader(0, 0, Version(0, 0), 1, 1)
    with streaming(Samples) as stream, evil(stream.endpoint) as socket:
        assert isinstance(stream, Samples)
        socket.send(words(stream.hello))
        socket.recv()
        for blocks, wrong in ((1, header._replace(steps=-1)), (0, header), (2, header)):
            socket.send(bytes(blocks * SCHEMA.nbytes) + words(FragmentMessage(0, wrong)))
        until(lambda: stream.counters.malformed == 3, lambda: stream.counters)
        assert stream.receiver.senders()[SenderId(1, 0)] == 0
        for number in range(4):
            socket.send(bytes(SCHEMA.nbytes) + words(FragmentMessage(number, header)))
        until(lambda: stream.receiver.senders()[SenderId(1, 0)] == 4, stream.receiver.senders)
        assert stream.counters.malformed == 3


def test_frames_that_cannot_be_stacked_are_refused_and_their_credit_goes_back():
    header = FragmentHeader(0, 0, Version(0, 0), 1, 1)
    hello = Hello("samples", 1, 0, 17, 0, [4], [schema_words(FRAMES)])
    with TcpTransport(KEYS) as serving:
        receiver = serving.sample_receiver(FRAMES)
        with evil(receiver.endpoint) as socket:
            socket.send(words(hello))
            socket.recv()
            for number, pixels in enumerate((b"", b"\xff" * 97, bytes(97), b"\xff" * 96)):
                socket.send_multipart([bytes(SCHEMA.nbytes) + words(FragmentMessage(number, header)), pixels])
            socket.send(bytes(SCHEMA.nbytes) + words(FragmentMessage(9, header)))  # without its frames
            assert receiver.receive(LIMIT) is not None
            until(lambda: receiver.receive(0.0) is None and receiver.counters.malformed == 4, lambda: receiver.counters)
            credited: set[int] = set()

            def hear() -> bool:
                receiver.receive(0.0)  # whoever receives pays what is owed
                while socket.poll(0):
                    message, _ = parse(TO_CLIENT, socket.recv())
                    credited.update(message.numbers if isinstance(message, Credit) else ())
                return len(credited) == 3

            until(hear, lambda: credited)
            assert credited == {0, 2, 3}, "not of the one that was received and is not released"


def test_a_client_refuses_what_a_server_cannot_say():
    with TcpTransport(KEYS) as serving, TcpTransport(KEYS.for_clients()) as connecting:
        stream = Inference(serving, connecting)
        router = stream.server._router
        assert stream.works()
        (peer,) = stream.server._peers.all()
        wrong = [
            b"",
            b"junk",
            words(Fetch(NONE)),
            words(RequestMessage(0, 1)),
            words(AnswerMessage(9, 1, Version(0, 0))),
        ]
        wrong += [
            bytes(9) + words(AnswerMessage(0, 1, Version(0, 0))),
            bytes(9) + words(AnswerMessage(1, 2, Version(0, 0))),
        ]
        for message in wrong:
            with router.lock:
                assert router.send(peer.route, message) == "sent"
        counters: Counters = stream.client.counters
        until(lambda: stream.client.poll(0.01) == [] and counters.malformed == len(wrong), lambda: counters)
        assert stream.works()
