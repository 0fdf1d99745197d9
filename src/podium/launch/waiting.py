"""How a worker waits for the others as it starts: each wait has a limit, and says for whom it was."""

import threading
import time
from collections.abc import Callable

from podium.core.errors import PeerError
from podium.orchestrator.worker import STOPPED, WorkerContext
from podium.protocol.directory import Registration
from podium.protocol.streams import ParameterReader
from podium.workers.action_sources import ActionSource, Weights

PEER_LIMIT_S = 300.0
"""How long a worker waits for those it needs: importing and compiling may take minutes on a busy machine. Shorter than
its watchdog is patient, so that it can say for whom it has waited."""
DATA_LIMIT_S = 900.0
"""How long a learner waits for the first step of an environment: longer than an actor may take to start, so that what
is wrong with the actor is said first."""


def wait_for(context: WorkerContext, be_patient: Callable[[], None], role: str, count: int) -> list[Registration]:
    """Workers of a role that have announced themselves, once there are `count` of them."""
    deadline = time.monotonic() + PEER_LIMIT_S
    while time.monotonic() < deadline:
        if found := context.membership.wait_for(role, count, timeout=1.0):
            be_patient()
            return found
        if context.stop.is_set():
            raise SystemExit(STOPPED)
    raise PeerError(f"{context.role}-{context.index}: no {role} has appeared for {PEER_LIMIT_S:.0f} s")


def first_update(source: ActionSource | Weights, stop: threading.Event, apart: ParameterReader | None = None) -> int:
    """The update that the newest parameters are of. `apart` reads them for a source that needs none itself.

    Not for one that does: a reader gives each version once, and that source would wait in vain for what was read here.
    """
    deadline = time.monotonic() + PEER_LIMIT_S
    while time.monotonic() < deadline and not stop.is_set():
        if apart is not None and (news := apart.read(0.5)) is not None:
            return news[0].update
        source.refresh(0.0 if apart is not None else 0.5)
        if source.version is not None:
            return source.version.update
    if stop.is_set():
        raise SystemExit(STOPPED)
    raise PeerError(f"no parameters have come for {PEER_LIMIT_S:.0f} s")


def wait_for_data(
    ready: Callable[[float], bool],
    produced: Callable[[], int],
    stop: threading.Event,
    limit_s: float,
    beat: Callable[[], None],
) -> None:
    """Until `ready` or `stop`. Environments may be slow; but if none has made a step for so long, none will."""
    steps, since = -1, time.monotonic()
    while not ready(0.5) and not stop.is_set():
        beat()
        if (now := produced()) != steps:
            steps, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            raise PeerError(f"there is nothing to learn from: no env step was made for {limit_s:g} s")
