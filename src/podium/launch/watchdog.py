"""What ends a worker that hangs.

with Watchdog(limit_s=300) as watchdog:
    ...                                # build, compile
    while ...:
        watchdog()                     # from the thread that works
"""

import faulthandler
import threading
from types import TracebackType

LONG_S = 600.0
"""What compiling may take, and whatever else is done once: a large network takes minutes on a busy machine."""


class Watchdog:
    """Ends this process if it is not called for so long, and writes into its log where each thread was.

    Leases are renewed by a thread of their own, so they say that a process lives, not that it gets on. It watches
    until it is closed, and is patient at first: a worker compiles as it starts. Threads of a larger process it does not
    watch.
    """

    def __init__(self, limit_s: float, long_s: float = LONG_S) -> None:
        self._limit_s, self._long_s = limit_s, max(limit_s, long_s)

    def __call__(self) -> None:
        """A heartbeat."""
        self._watch(self._limit_s)

    def be_patient(self) -> None:
        """A heartbeat; what comes now is done once, and may take longer."""
        self._watch(self._long_s)

    def _watch(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            faulthandler.dump_traceback_later(seconds, exit=True)

    def __enter__(self) -> "Watchdog":
        self.be_patient()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        faulthandler.cancel_dump_traceback_later()
