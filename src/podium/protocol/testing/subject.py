"""What a promise is checked on, and what it is checked with."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from podium.core.errors import BrokenPromiseError
from podium.protocol.streams import Transport

LIMIT = 30.0  # seconds that anything may take on a loaded machine
MOMENT = 0.05  # seconds in which something that must not happen is given the chance to


@dataclass(frozen=True)
class Subject:
    """A transport to be checked.

    `make` returns two transports that reach each other: the first makes receivers, publishers and servers, the second
    the ends that connect to them. They may be one and the same; both are closed in the end.
    `keeps_unreleased` says what a receiver that comes back finds: all that was not released, or nothing of it.
    """

    make: Callable[[], tuple[Transport, Transport]]
    keeps_unreleased: bool = True


def expect(holds: bool, promise: str) -> None:
    """Raise unless a promise holds."""
    if not holds:
        raise BrokenPromiseError(f"broken promise: {promise}")


def within(what: str) -> Iterator[None]:
    """Iterate until the limit is over, which breaks the promise `what`."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        yield
    raise BrokenPromiseError(f"broken promise: {what} (waited {LIMIT:.0f} s)")


@contextmanager
def opened(subject: Subject) -> Iterator[tuple[Transport, Transport, ExitStack]]:
    """Both transports, and a stack whose ends are closed before them."""
    serving, connecting = subject.make()
    with ExitStack() as transports:
        transports.callback(serving.close)
        transports.callback(connecting.close)
        with ExitStack() as ends:
            yield serving, connecting, ends
