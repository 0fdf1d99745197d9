"""A worker's process: `python -m podium.orchestrator.process`, told by one JSON line on standard input what it is.

Standard input then stays open as a lifeline: its end means that the launcher is gone. `stop` is set, and what has not
ended `leave_s` seconds later is killed, with whatever it has started.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from podium.core.imports import load_path
from podium.orchestrator.host import Host
from podium.orchestrator.lifeline import Lifeline, PipeLifeline
from podium.orchestrator.worker import FAILED, Ending, WorkerContext, supervised
from podium.protocol.membership import connect
from podium.protocol.run_keys import RunKeys

HEADER = "--- "  # begins the line with which an incarnation begins its log
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Description:
    """All that a process has to know; secrets are in it, which is why it comes through a pipe."""

    entry: str
    role: str
    index: int
    incarnation: int
    payload: dict[str, Any]
    directory: str
    roles: list[str]  # that it may look up there
    keys: RunKeys
    host: Host
    leave_s: float = 4.0
    path: list[str] = field(default_factory=list)  # the launcher's sys.path: what it can import, a worker can


def run_worker(told: Description, stop: threading.Event) -> Ending:
    """Run the worker that is described until it ends, or `stop` is set: in this process, whichever back end made it."""

    def work() -> None:
        # Imports come before the lease: a large library may keep other threads from renewing it while it loads.
        entry = load_path(told.entry, f"entry of {told.role}")
        where, host = (told.role, told.index, told.incarnation), told.host
        joined = connect(told.directory, told.keys, *where, host=host.identity, roles=told.roles, stop=stop)
        with joined as membership:
            if not stop.is_set():
                entry(WorkerContext(*where, told.payload, membership, stop, host, told.keys))

    return supervised(work, stop)


def main() -> int:
    """Run the worker that standard input describes; returns its exit code."""
    descriptor = os.dup(0)  # not inherited by what the worker starts
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    line = _read_line(descriptor)
    if not line:
        print("error: no description came; this module is started by the orchestrator", file=sys.stderr)
        return FAILED
    told, stop = msgspec.json.decode(line, type=Description), threading.Event()
    _stop_on_signals(stop)
    leave_without(PipeLifeline(descriptor), stop, told.leave_s)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{HEADER}{told.role}-{told.index} incarnation {told.incarnation} pid {os.getpid()} {when}", flush=True)
    sys.path[:] = told.path or sys.path
    ending = run_worker(told, stop)
    if ending.message:
        print(ending.message, file=sys.stderr, flush=True)
    return ending.code


def leave_without(lifeline: Lifeline, stop: threading.Event, leave_s: float) -> None:
    """Set `stop` when the lifeline ends; a process that has not left `leave_s` seconds later is killed."""

    def run() -> None:
        lifeline.wait()
        stop.set()
        _end_after(leave_s)

    threading.Thread(target=run, name="lifeline", daemon=True).start()


def _stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` on a signal.

    From a thread: a handler runs in the middle of what the main thread does, and would wait for ever for the event's
    lock if that is what the main thread holds.
    """
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    for signum in SIGNALS:
        signal.signal(signum, lambda *_: None)

    def run() -> None:
        while not set(os.read(heard, 4096)) & set(SIGNALS):
            pass
        stop.set()

    threading.Thread(target=run, name="signals", daemon=True).start()


def _end_after(leave_s: float) -> None:
    time.sleep(leave_s)  # the process ends meanwhile, and this thread with it
    print(f"error: the launcher is gone, and this did not stop within {leave_s:g} s:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(FAILED)


def _read_line(descriptor: int) -> bytes:
    """Up to the first newline, without reading ahead; empty if the input ends before."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (part := os.read(descriptor, 65536)):
            return b""
        line += part
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
