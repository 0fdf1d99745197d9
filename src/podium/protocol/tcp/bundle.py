"""Small fragments that are committed in quick succession, sent as one message.

Each message costs both ends some tens of microseconds, whatever is in it. A fragment that comes after a pause goes out
at once. Those that follow it closely are held until there are enough of them, or the sender is about to wait, but no
longer than `LINGER` seconds: a thread sees to that, which lives only while there is something to hold.
"""

import threading
import time
from collections.abc import Callable

from podium.protocol.streams import FragmentHeader, StreamError
from podium.protocol.tcp.wire import FragmentsMessage, words

CLOSE = 100e-6  # seconds between two commits that belong together
LINGER = 1e-3  # seconds that a fragment may be held
IDLE = 1000  # looks in vain after which the thread ends
BYTES, MOST = 128 << 10, 256  # of a message: larger ones are no cheaper


class Bundle:
    """What was committed and not sent yet.

    bundle = Bundle(link.send_copy, fragment_bytes)
    bundle.add(number, header, block)       # numbers in a row; the block stays as it is until it has arrived
    bundle.flush()                          # before the socket is used otherwise: afterwards nobody else uses it
    """

    def __init__(self, send: Callable[[bytes], bool], nbytes: int) -> None:
        self._send = send
        self._most = min(MOST, max(1, BYTES // max(nbytes, 1)))
        self._lock = threading.Lock()
        self._number = 0  # of the first one held
        self._headers: list[FragmentHeader] = []
        self._blocks: list[memoryview] = []
        self._added = 0.0
        self._thread: threading.Thread | None = None
        self._leaving = threading.Event()

    def add(self, number: int, header: FragmentHeader, block: memoryview) -> None:
        """Send it, now or in a moment. Raises StreamError if the socket is full."""
        with self._lock:
            if not self._blocks:
                self._number = number
            self._headers.append(header)
            self._blocks.append(block)
            now = time.monotonic()
            pause, self._added = now - self._added, now
            if pause > CLOSE or len(self._blocks) >= self._most:
                self._send_all()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._linger, name="podium bundle", daemon=True)
                self._thread.start()

    def resume(self) -> None:
        """The sender has waited for others: a pause until now is not its own."""
        self._added = time.monotonic()

    def flush(self) -> None:
        """Send what is held. Raises StreamError if the socket is full."""
        if self._blocks:
            with self._lock:
                self._send_all()

    def _send_all(self) -> None:
        if self._blocks and not self._try():
            raise StreamError("no room for a fragment in the socket, which has room for all credits")

    def _try(self) -> bool:
        sent = self._send(b"".join([*self._blocks, words(FragmentsMessage(self._number, self._headers))]))
        if sent:
            self._blocks.clear()
            self._headers.clear()
        return sent

    def _linger(self) -> None:
        vain = 0
        while not self._leaving.wait(LINGER):
            with self._lock:
                if self._blocks:
                    vain = 0
                    self._try()  # if it does not fit, the owner is told at its next call
                elif (vain := vain + 1) > IDLE:
                    self._thread = None
                    return

    def close(self) -> None:
        """Send what is held, as far as it fits; nobody uses the socket from here any more. Twice is harmless."""
        self._leaving.set()
        if (thread := self._thread) is not None:
            thread.join()
        if self._blocks:
            self._try()
