"""A worker that hangs ends itself, also before it has begun; and no wait is without a limit."""

import subprocess
import sys
import threading
import time

import pytest

from podium.core.errors import PeerError
from podium.launch.waiting import wait_for_data

LIMIT_S = 60.0
HANGS = """
import threading
from podium.launch.watchdog import Watchdog

def hang():
    threading.Event().wait()

with Watchdog({limits}) as watchdog:
    {calls}
    hang()
"""


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ("0.01, long_s=0.3", "pass"),
        ("0.3, long_s=60", "watchdog()"),
        ("0.01, long_s=0.3", "watchdog(); watchdog.be_patient()"),
    ],
    ids=["from its start", "after a heartbeat", "while it compiles"],
)
def test_a_process_that_hangs_ends_itself_and_says_where(limits: str, calls: str) -> None:
    script = HANGS.format(limits=limits, calls=calls)
    hung = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert hung.returncode == 1
    assert "Timeout (0:00:00.300000)!" in hung.stderr
    assert "in hang" in hung.stderr


def test_a_learner_waits_as_long_as_environments_are_stepped_and_no_longer() -> None:
    steps, beats = iter([0, 0, 7, 7, 20]), []
    with pytest.raises(PeerError, match=r"no env step was made for 0\.05 s"):
        wait_for_data(lambda timeout: False, lambda: next(steps, 20), threading.Event(), 0.05, lambda: beats.append(0))
    assert len(beats) > 5, "it went on while the count grew"


def test_a_learner_that_is_stopped_waits_no_longer() -> None:
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    wait_for_data(lambda timeout: False, lambda: 0, stop, LIMIT_S, lambda: None)
    assert time.monotonic() - began < LIMIT_S
