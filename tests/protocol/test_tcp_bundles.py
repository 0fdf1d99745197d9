"""Small fragments in quick succession share a message: none waits for long, none is lost, and order is kept."""

import time
from collections.abc import Callable, Iterator

import pytest

from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import FragmentHeader, StreamError
from podium.protocol.tcp import TcpTransport, bundle
from podium.protocol.tcp.bundle import Bundle
from podium.protocol.tcp.wire import TO_SERVER, FragmentsMessage, parse

LIMIT = 30.0
SIZE = 4096
MOST = bundle.BYTES // SIZE


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


class Socket:
    """Takes messages unless it is full, and takes them apart."""

    def __init__(self) -> None:
        self.full = False
        self.messages: list[bytes] = []

    def send(self, message: bytes) -> bool:
        if not self.full:
            self.messages.append(message)
        return not self.full

    def numbers(self) -> list[list[int]]:
        """The numbers of the fragments in each message; each one's bytes and header are its own."""
        return [self.checked(message) for message in self.messages]

    @staticmethod
    def checked(message: bytes) -> list[int]:
        fragments, size = parse(TO_SERVER, message)
        assert isinstance(fragments, FragmentsMessage)
        numbers = [fragments.number + i for i in range(len(fragments.headers))]
        assert size == SIZE * len(numbers)
        for i, number in enumerate(numbers):
            assert fragments.headers[i] == header(number)
            assert message[SIZE * i : SIZE * (i + 1)] == content(number)
        return numbers


def header(number: int) -> FragmentHeader:
    return FragmentHeader("main", 0, number, Version(0, 0), 1, number + 1)


def content(number: int) -> memoryview:
    return memoryview(bytes([number % 251]) * SIZE)


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
def held(socket: Socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bundle]:
    """Whatever comes is close to what came before, and is held as long as nothing else happens."""
    monkeypatch.setattr(bundle, "CLOSE", 1e6)
    monkeypatch.setattr(bundle, "LINGER", 1e6)
    bundled = Bundle(socket.send, SIZE)
    bundled.resume()
    yield bundled
    bundled.close()


def add(bundled: Bundle, numbers: range) -> None:
    for number in numbers:
        bundled.add(number, header(number), content(number))


def test_a_fragment_after_a_pause_goes_at_once(socket):
    bundled = Bundle(socket.send, SIZE)
    add(bundled, range(1))
    assert socket.numbers() == [[0]]
    bundled.close()


def test_close_ones_share_a_message(held, socket):
    add(held, range(2 * MOST + 3))
    assert socket.numbers() == [list(range(MOST)), list(range(MOST, 2 * MOST))]
    held.flush()
    held.flush()
    assert socket.numbers()[2:] == [list(range(2 * MOST, 2 * MOST + 3))]


def test_what_is_held_goes_out_by_itself(socket, monkeypatch):
    monkeypatch.setattr(bundle, "CLOSE", 1e6)
    bundled = Bundle(socket.send, SIZE)
    bundled.resume()
    for number in range(3):
        add(bundled, range(number, number + 1))
        until(lambda number=number: sum(map(len, socket.numbers())) == number + 1)
    bundled.close()


def test_nobody_watches_when_nothing_is_held(socket, monkeypatch):
    monkeypatch.setattr(bundle, "CLOSE", 1e6)
    monkeypatch.setattr(bundle, "IDLE", 3)
    bundled = Bundle(socket.send, SIZE)
    bundled.resume()
    for number in range(2):  # and it watches again when there is
        add(bundled, range(number, number + 1))
        until(lambda: bundled._thread is None)
    assert [number for numbers in socket.numbers() for number in numbers] == [0, 1]
    bundled.close()


def test_a_full_socket_is_told_and_loses_nothing(held, socket):
    socket.full = True
    add(held, range(2))
    with pytest.raises(StreamError, match="no room for a fragment"):
        held.flush()
    socket.full = False
    held.flush()
    assert socket.numbers() == [[0, 1]]


def test_closing_sends_what_is_held(held, socket):
    add(held, range(2))
    held.close()
    held.close()
    assert socket.numbers() == [[0, 1]]


def test_fragments_too_large_to_share_go_one_by_one(socket):
    bundled = Bundle(socket.send, bundle.BYTES)
    bundled.resume()
    block = memoryview(bytes(bundle.BYTES))
    for number in range(3):
        bundled.add(number, header(number), block)
    assert [len(parse(TO_SERVER, message)[0].headers) for message in socket.messages] == [1, 1, 1]
    bundled.close()


@pytest.mark.parametrize("credits", [1, 3, 64])
def test_all_that_was_committed_arrives_though_the_sender_does_nothing_more(credits, monkeypatch):
    monkeypatch.setattr(bundle, "CLOSE", 1e6)
    schema = Schema((Field("obs", (4,), "float32"),))
    keys = RunKeys.generate()
    with TcpTransport(keys) as serving, TcpTransport(keys.for_clients()) as connecting:
        receiver = serving.sample_receiver(schema)
        sender = connecting.sample_sender(receiver.endpoint, schema, SenderId(0, 0), credits)
        for turn in range(3):
            for place in range(credits):
                buffer = sender.acquire(LIMIT)
                assert buffer is not None
                buffer.arrays[0][:] = turn * credits + place
                sender.commit(buffer, header(turn * credits + place))
            for place in range(credits):
                received = receiver.receive(LIMIT)
                assert received is not None
                assert received.header.sequence == turn * credits + place
                assert (received.arrays[0] == turn * credits + place).all()
                received.release()
