"""Parameters over TCP come by themselves, and the readers of a host fetch one copy together."""

import contextlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import Field, Schema, Version
from podium.protocol.shm import create_directory
from podium.protocol.shm.futex import AVAILABLE
from podium.protocol.streams import ParameterReader
from podium.protocol.tcp import TcpTransport, client_link
from podium.protocol.tcp.host_copy import SharedParameterReader
from podium.protocol.tcp.parameters import TcpParameterPublisher, TcpParameterReader
from podium.protocol.tcp.sockets import has_input
from podium.protocol.testing import PARAMETERS, Subject
from podium.protocol.testing.parameters import WEIGHTS, constant, value_of

KEYS = RunKeys.generate()
LIMIT = 30.0
shared_memory = pytest.mark.skipif(not AVAILABLE, reason="shared memory needs Linux's futex")


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def no_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that hears nothing for a second asks again: here messages are counted, and a second may pass."""
    monkeypatch.setattr(client_link, "RENEW", 1e6)


@pytest.fixture
def share() -> Iterator[Path]:
    """A run's directory of shared memory."""
    owned = create_directory(f"test-{secrets.token_hex(6)}")
    yield owned.path
    owned.remove()


@pytest.fixture
def publisher() -> Iterator[TcpParameterPublisher]:
    with TcpTransport(KEYS) as serving:
        yield serving.parameter_publisher("main", WEIGHTS)


@contextlib.contextmanager
def reading(publisher: TcpParameterPublisher, share: Path | None = None) -> Iterator[ParameterReader]:
    with TcpTransport(KEYS.for_clients(), share=share) as connecting:
        yield connecting.parameter_reader(publisher.endpoint, WEIGHTS)


def publish(publisher: TcpParameterPublisher, update: int) -> None:
    publisher.publish(Version(0, update), constant(update))


def read(reader: ParameterReader, update: int) -> None:
    """Read up to this version, which must come."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if (news := reader.read(1.0)) is not None:
            assert value_of(news[1]) == news[0].update
            if news[0].update == update:
                return
    pytest.fail(f"version {update} has not come")


def test_a_version_that_was_published_is_there_at_the_next_read(publisher):
    with reading(publisher) as reader:
        assert isinstance(reader, TcpParameterReader)
        assert reader.read() is None
        until(lambda: publisher.counters.received == 1)
        for update in range(5):
            publish(publisher, update)
            until(lambda: has_input(reader._link._socket))  # without being asked for it now
            news = reader.read()
            assert news is not None
            assert news[0] == Version(0, update)
            until(lambda update=update: publisher.counters.received == update + 2)  # asked for the next one


def test_a_reader_that_does_not_read_is_sent_one_version(publisher):
    with reading(publisher) as reader:
        publish(publisher, 0)
        read(reader, 0)
        until(lambda: publisher.counters.received == 2)
        for update in range(1, 100):
            publish(publisher, update)
        assert publisher.counters.sent == 2
        read(reader, 99)
        assert publisher.counters.sent == 3


def test_a_version_that_lay_here_for_long_is_passed_over_for_the_newest(publisher):
    with reading(publisher) as reader:
        for turn in range(100):
            for update in range(10 * turn, 10 * turn + 10):
                publish(publisher, update)
            time.sleep(0.01 * turn)  # until word of the newer ones has come, some time
            news = reader.read(LIMIT)
            assert news is not None
            if turn and news[0] == Version(0, 10 * turn + 9):
                return
            read(reader, 10 * turn + 9) if news[0] < Version(0, 10 * turn + 9) else None
    pytest.fail("old versions are read first")


def test_unchanged_versions_cost_no_message(publisher):
    with reading(publisher) as reader:
        publish(publisher, 0)
        read(reader, 0)
        until(lambda: publisher.counters.received == 2)
        for _ in range(1000):
            assert reader.read() is None
        assert (publisher.counters.received, publisher.counters.sent) == (2, 1)


@shared_memory
@pytest.mark.parametrize("promise", PARAMETERS, ids=lambda promise: promise.__name__)
def test_the_promise_holds_for_readers_that_share(promise, share):
    promise(Subject(lambda: (TcpTransport(KEYS), TcpTransport(KEYS.for_clients(), share=share))))


@shared_memory
def test_readers_of_a_host_fetch_each_version_once(publisher, share):
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reading(publisher, share)) for _ in range(5)]
        for update in range(20):
            publish(publisher, update)
            for reader in readers:
                read(reader, update)
        # Twenty, and what may be sent twice after a second of silence; each for itself, it would be a hundred.
        assert 20 <= publisher.counters.sent <= 40
    assert [path.name for path in share.iterdir() if path.suffix != ".lock"] == ["owner"]


@shared_memory
def test_whoever_comes_late_finds_the_version_that_is_there(publisher, share):
    with reading(publisher, share) as first:
        publish(publisher, 7)
        read(first, 7)
        with reading(publisher, share) as late:
            read(late, 7)
        assert publisher.counters.sent == 1


@shared_memory
def test_when_the_one_that_fetches_leaves_another_goes_on(publisher, share):
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        fetching = first.enter_context(reading(publisher, share))
        others = [stack.enter_context(reading(publisher, share)) for _ in range(2)]
        publish(publisher, 0)
        for reader in (fetching, *others):
            read(reader, 0)
        first.close()
        for update in range(1, 4):
            publish(publisher, update)
            for reader in others:
                read(reader, update)
        until(lambda: any(relays(reader) for reader in others))
        assert not all(relays(reader) for reader in others)


def relays(reader: ParameterReader) -> bool:
    assert isinstance(reader, SharedParameterReader)
    reader.read()  # looks who fetches
    return reader._relay is not None


FETCHING = """
import json, sys
from pathlib import Path
from podium.protocol.run_keys import RunKeys
from podium.protocol.tcp import TcpTransport, client_link
from podium.protocol.testing.parameters import WEIGHTS
transport = TcpTransport(RunKeys(*json.loads(sys.argv[1])), share=Path(sys.argv[3]))
reader = transport.parameter_reader(sys.argv[2], WEIGHTS)
assert reader._relay is not None
print("fetching", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_that_fetches(publisher: TcpParameterPublisher, share: Path) -> Iterator[subprocess.Popen]:
    """A process whose reader came first."""
    command = [sys.executable, "-c", FETCHING, json.dumps(astuple(KEYS.for_clients())), publisher.endpoint, str(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "fetching\n"
            yield process
        finally:
            process.kill()


@shared_memory
def test_when_the_one_that_fetches_is_killed_another_goes_on(publisher, share):
    with another_that_fetches(publisher, share) as process, reading(publisher, share) as reader:
        publish(publisher, 0)
        read(reader, 0)
        assert not relays(reader)
        process.kill()
        process.wait(LIMIT)
        publish(publisher, 1)
        read(reader, 1)
        until(lambda: relays(reader))
        with reading(publisher, share) as late:
            read(late, 1)
        segments = [path.name for path in share.iterdir() if path.name.startswith("policy-")]
        assert len(segments) == 1, "the dead one's copy is gone"


@shared_memory
def test_when_the_one_that_fetches_is_frozen_the_others_fetch_for_themselves(publisher, share):
    with another_that_fetches(publisher, share) as process, reading(publisher, share) as reader:
        publish(publisher, 0)
        read(reader, 0)
        os.kill(process.pid, signal.SIGSTOP)
        publish(publisher, 1)
        read(reader, 1)
        assert not relays(reader)
        os.kill(process.pid, signal.SIGCONT)
        publish(publisher, 2)
        read(reader, 2)


@shared_memory
def test_without_room_for_a_copy_each_fetches_its_own(publisher, share, caplog):
    large = Schema((Field("w", (1 << 18,), "float32"),))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TcpTransport(KEYS) as serving, TcpTransport(KEYS.for_clients(), share=share) as connecting:
        large_publisher = serving.parameter_publisher("large", large)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, unlimited[1]))
        try:
            readers = [connecting.parameter_reader(large_publisher.endpoint, large) for _ in range(2)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        large_publisher.publish(Version(0, 0), [np.ones(1 << 18, np.float32)])
        for reader in readers:
            news = reader.read(LIMIT)
            assert news is not None
            assert (news[1][0] == 1).all()
        assert large_publisher.counters.sent == 2
    assert "parameters are not shared on this host: no room in" in caplog.text


def test_without_a_directory_each_fetches_its_own(publisher, tmp_path):
    with reading(publisher, tmp_path / "none") as one, reading(publisher) as two:
        assert isinstance(one, TcpParameterReader)
        assert isinstance(two, TcpParameterReader)
        publish(publisher, 0)
        read(one, 0)
        read(two, 0)
        assert publisher.counters.sent == 2
