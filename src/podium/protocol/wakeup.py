"""Wakes a thread that polls sockets."""

import contextlib
import os
import threading


class Wakeup:
    """A pipe, so that it can be waited for beside sockets. Rung from any thread.

    poller.register(wakeup.fileno(), zmq.POLLIN)        # wakeup.wake() elsewhere; then wakeup.clear()
    """

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """To poll for reading."""
        return self._out

    def wake(self) -> None:
        """Never blocks; harmless after `close`."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full of rings that nobody has heard yet
            if not self._closed:
                os.write(self._in, b".")

    def clear(self) -> None:
        """Take all rings so far."""
        with contextlib.suppress(BlockingIOError):  # there was none
            os.read(self._out, 65536)

    def close(self) -> None:
        """Twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._in)
                os.close(self._out)
