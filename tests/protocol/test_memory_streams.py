"""Threads of one process: every promise of a transport, and no copy."""

from collections.abc import Callable

import pytest

from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId
from podium.protocol.streams import Transport
from podium.protocol.testing import PROMISES, Subject
from podium.protocol.testing.samples import SMALL, header


def connected() -> tuple[Transport, Transport]:
    """One transport is both ends'."""
    transport = MemoryTransport()
    return transport, transport


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_memory_keeps(promise: Callable[[Subject], None]) -> None:
    promise(Subject(connected))


def test_a_fragment_is_received_in_the_memory_that_it_was_written_to() -> None:
    transport = MemoryTransport()
    receiver = transport.sample_receiver(SMALL)
    sender = transport.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 1)
    buffer = sender.acquire(1.0)
    assert buffer is not None
    sender.commit(buffer, header(0))
    received = receiver.receive(1.0)
    assert received is not None
    assert all(mine is theirs for mine, theirs in zip(buffer.arrays, received.arrays, strict=True))
