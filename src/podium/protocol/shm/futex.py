"""Waiting for a word of shared memory to change, by Linux's futex, and the order in which memory is seen.

wakeup = FutexWakeup(segment, offset)
wakeup.wait(look, timeout=0.2)      # one process: returns what `look` finds
wakeup.wake()                       # another one, after it has changed what `look` looks at

There is no lock that a killed process could keep. A wakeup is one word: a waiter writes 1, looks once more, and sleeps
while it is 1; a ringer changes what is looked at, and if the word is 1 writes 0 and wakes. Each side writes before it
reads, with a fence between, so that at least one of the two sees the other.
"""

import ctypes
import mmap
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SYSTEM_CALLS = {"x86_64": 202, "aarch64": 98}
WAIT, WAKE = 0, 1  # not private: the word is shared by processes
EVERYBODY = 2**31 - 1
PATIENCE = 0.1  # seconds: a ringer killed between writing 0 and waking costs its waiter no more than this
SPINS = 100  # looks before sleeping, some 20 microseconds: a round trip takes 15 with them and 130 if both ends sleep

MACHINE = platform.machine()
AVAILABLE = sys.platform == "linux" and MACHINE in SYSTEM_CALLS


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def load(library: type[ctypes.CDLL]) -> Callable[..., int]:
    """The system call as a function (address, operation, value, timeout)."""
    call = library(None).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
    call.argtypes += [ctypes.c_void_p, ctypes.c_uint32]
    call.restype = ctypes.c_long
    number = SYSTEM_CALLS[MACHINE]
    return lambda address, operation, value, timeout: call(number, address, operation, value, timeout, None, 0)


if AVAILABLE:
    sleep_on = load(ctypes.CDLL)  # lets other threads run
    wake_on = load(ctypes.PyDLL)  # is short: keeps the interpreter

_private = threading.RLock()
_word = ctypes.c_uint32(0)


def fence_x86() -> None:
    """A locked instruction is a full fence here, and taking an uncontended lock of our own is the cheapest one."""
    with _private:
        pass


def fence_elsewhere() -> None:
    """An acquire and a release are not a full fence elsewhere; the kernel makes one before it looks for waiters."""
    wake_on(ctypes.addressof(_word), WAKE, 0, None)


def in_order() -> None:
    """x86-64 makes reads in order, and shows writes in order, by itself."""


# fence: writes before it are seen by others before reads after it are made.
# order: writes before it are seen before writes after it, reads before it are made before anything after it.
fence, order = (fence_x86, in_order) if MACHINE == "x86_64" else (fence_elsewhere, fence_elsewhere)


class FutexWakeup:
    """One word that somebody may sleep on. With `shared`, several may sleep at once, and all are woken."""

    def __init__(self, memory: mmap.mmap, offset: int, shared: bool = False) -> None:
        self._flag = ctypes.c_uint32.from_buffer(memory, offset)
        self._address = ctypes.addressof(self._flag)
        self._word = memoryview(memory)[offset : offset + 4].cast("I")
        self._shared = shared

    def wake(self) -> None:
        """Wake who waits, after a change; costs no system call if nobody does."""
        fence()
        word = self._word
        if word[0]:
            word[0] = 0
            wake_on(self._address, WAKE, EVERYBODY, None)

    def wait(self, look: Callable[[], Found | None], timeout: float) -> Found | None:
        """What `look` finds; None if it has found nothing for `timeout` seconds."""
        if (found := look()) is not None or timeout <= 0:
            return found
        for _ in range(SPINS):
            if (found := look()) is not None:
                return found
        word, end = self._word, time.monotonic() + timeout
        while True:
            word[0] = 1
            fence()
            found = look()
            left = end - time.monotonic()
            if found is not None or left <= 0:
                if not self._shared:  # where others may sleep, too, the word stays: at worst a ring in vain
                    word[0] = 0
                return found
            left = min(left, PATIENCE)
            pause = Timespec(int(left), int(left % 1 * 1e9))
            sleep_on(self._address, WAIT, 1, ctypes.addressof(pause))
