"""The loop of workers that step environments: turn after turn, with a sign of life now and then."""

import threading
import time
from collections.abc import Callable

CALL_S = 0.2
"""After so long without progress, `reconnect` is called."""
BEAT_S = 1.0
"""How often `beat` is called."""


def run_worker_loop(
    turn: Callable[[], bool], stop: threading.Event, beat: Callable[[], None], reconnect: Callable[[], None]
) -> None:
    """Until `stop` is set. A turn says whether something moved, and waits a moment if there is nothing to do."""
    progress = beaten = time.monotonic()
    while not stop.is_set():
        moved = turn()
        now = time.monotonic()
        if moved:
            progress = now
        elif now - progress > CALL_S:
            reconnect()
            progress = time.monotonic()
        if now - beaten > BEAT_S:
            beat()
            beaten = now
