"""What every peer's script shares: its command line, the window that is measured, and the line it prints.

    arguments = parse(["halfcheetah"])
    window = Window(warm_up=2, seconds=arguments.seconds)
    while not window.closed:
        steps_trained = train_one_iteration()      # the peer's own loop
        window.mark(steps_trained)                 # a total, not a difference
    report("peer", "1.0", arguments.workload, window, note="")

Only the standard library: this file is imported by the Pythons of all the peers.
"""

import argparse
import json
import signal
import sys
import time
from types import FrameType


class Window:
    """Environment steps trained, and seconds, between two ends of iterations of a training loop.

    The first `warm_up` ends are let pass (imports, compilation, first allocations), the next one opens the window, and
    the first end after `seconds` closes it: collection and update are counted whole, whichever comes first in the loop.
    """

    def __init__(self, warm_up: int, seconds: float):
        self.warm_up = warm_up
        self.limit_s = seconds
        self.iterations = -1
        self.env_steps = 0
        self.seconds = 0.0
        self._opened_at = (0, 0.0)

    @property
    def closed(self) -> bool:
        return self.seconds >= self.limit_s

    def mark(self, env_steps_trained: int) -> None:
        """An iteration has ended, and the run has trained on this many environment steps since its start."""
        now = time.perf_counter()
        if self.closed:
            return
        if self.warm_up > 0:
            self.warm_up -= 1
            return
        self.iterations += 1
        if self.iterations == 0:
            self._opened_at = (env_steps_trained, now)
        self.env_steps = env_steps_trained - self._opened_at[0]
        self.seconds = now - self._opened_at[1]


def parse(workloads: list[str]) -> argparse.Namespace:
    """`--workload` (one of these) and `--seconds`, the window's length; SIGTERM cleans up as Ctrl-C does."""
    end_on_sigterm()
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=workloads, default=workloads[0])
    parser.add_argument("--seconds", type=float, default=25.0, help="length of the measured window")
    arguments = parser.parse_args()
    if not arguments.seconds > 0:
        parser.error(f"--seconds {arguments.seconds:g}: more than 0 would be right")
    return arguments


def report(peer: str, version: str, workload: str, window: Window, note: str) -> None:
    """Print the result as one line of JSON, the last one of the script; exit code 1 where nothing was measured."""
    if not window.closed:
        sys.exit(f"{peer}: training ended before the window of {window.limit_s:g} s was full")
    line = {
        "peer": peer,
        "version": version,
        "workload": workload,
        "env_steps": window.env_steps,
        "seconds": round(window.seconds, 3),
        "steps_per_s": round(window.env_steps / window.seconds, 1),
        "iterations": window.iterations,
        "note": note,
    }
    sys.stderr.flush()
    print(json.dumps(line), flush=True)


def end_on_sigterm() -> None:
    """Make SIGTERM a Ctrl-C, so that `finally` runs; to be called again after a library has set its own handler."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
