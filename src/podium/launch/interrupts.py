"""Ctrl-C and SIGTERM: a run ends at its next update, with a checkpoint; or soon without one, if the update is long."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from podium.runs.progress import Progress

PATIENCE_S = 4.0
"""How long SIGTERM waits for the update that is computed now: a service manager kills after some seconds."""
INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt(threading.Event):
    """Set by a signal; `noticed` once the training loop has looked."""

    noticed = False

    def is_set(self) -> bool:
        """Whether a signal has come."""
        found = super().is_set()
        self.noticed = self.noticed or found
        return found


@contextmanager
def interruptible(progress: Progress, leave: Callable[[], None]) -> Iterator[Interrupt]:
    """An event that Ctrl-C or SIGTERM sets: end at the next update, with a checkpoint. Twice: end now.

    A compiled program hears no signal while it runs. So a thread does, too: if SIGTERM is not noticed within
    `PATIENCE_S`, or a second signal comes meanwhile, it calls `leave` and ends the process with exit code 130.
    """
    event = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(signum: int, _: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        progress.say(f"{signal.Signals(signum).name}: writing a checkpoint; once more to stop without one")

    def end() -> None:
        progress.say("an update was being computed: stopped without a checkpoint of it; `podium resume` goes on")
        progress.__exit__()  # gives the terminal back
        leave()
        os._exit(INTERRUPTED)

    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = {signum: signal.signal(signum, handle) for signum in SIGNALS}
    wakeup = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(heard, event, end), name="signals", daemon=True)
    listener.start()
    try:
        yield event
    finally:
        signal.set_wakeup_fd(wakeup)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(signalled)  # ends the listener
        listener.join()
        os.close(heard)


def _listen(heard: int, event: Interrupt, end: Callable[[], None]) -> None:
    """Wait for signals until the other end of the pipe is closed."""
    came: set[int] = set()
    while True:
        patience_s = PATIENCE_S if signal.SIGTERM in came else None
        if select.select([heard], [], [], patience_s)[0]:
            if not (new := set(os.read(heard, 64))):
                return
            if not (new := new & set(SIGNALS)):  # others have handlers, too
                continue
            came, twice = came | new, bool(came)
        else:
            twice = True
        if twice and not event.noticed:
            end()
        elif twice:
            came = set()
