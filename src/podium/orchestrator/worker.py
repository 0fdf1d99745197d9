"""What a worker's entry function is called with, and what becomes of how it ends.

def act(context: WorkerContext) -> None:
    context.membership.announce({})
    while not context.stop.is_set():
        ...
        context.membership.progress += 1
"""

import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from podium.core.errors import EnvError, EnvLostError, PodiumError, TrainingError
from podium.orchestrator.host import Host
from podium.protocol.membership import Membership
from podium.protocol.run_keys import RunKeys

# Exit codes. Negative ones are signals, as in subprocess; any other is a crash.
FINISHED = 0  # it had nothing more to do
FAILED = 1  # an exception
MISCONFIGURED = 2  # a ConfigError: it would be the same next time
STOPPED = 3  # it was told to stop, by the directory, by a signal, or because its launcher is lost
HOPELESS = 4  # a TrainingError: it would be the same next time, after some more of the user's hours
ENV_FAILED = 5  # an EnvError: the environment's own code is at fault, as it would be next time

TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class WorkerContext:
    """All that a worker is given. `stop` is the membership's, and set by signals, too."""

    role: str
    index: int
    incarnation: int
    payload: Mapping[str, Any]
    membership: Membership
    stop: threading.Event
    host: Host
    keys: RunKeys | None = None  # with the server's secret if the role binds; None where there are no sockets


class Ending(NamedTuple):
    """How a worker ended: its exit code, and a line or a traceback if it failed."""

    code: int
    message: str | None = None


def supervised(work: Callable[[], None], stop: threading.Event) -> Ending:
    """Do the work of a worker, and turn whatever ends it into an exit code."""
    try:
        work()
    except TrainingError as error:
        return Ending(HOPELESS, f"error: {error}")
    except EnvLostError as error:
        return Ending(FAILED, f"error: {error}")
    except EnvError as error:
        return Ending(ENV_FAILED, f"error: {error}")
    except PodiumError as error:
        return Ending(error.exit_code, f"error: {error}")
    except SystemExit as error:
        code = error.code or 0
        return Ending(code) if isinstance(code, int) else Ending(FAILED, f"error: {code}")
    except Exception:  # noqa: BLE001 - whatever a worker dies of, its supervisor has to know
        return Ending(FAILED, traceback.format_exc().rstrip())
    return Ending(STOPPED if stop.is_set() else FINISHED)


def describe_exit(code: int) -> str:
    """`exit code 1`, `killed by SIGSEGV`."""
    if code in (FINISHED, STOPPED):
        return "ended by itself" if code == FINISHED else "left because of a signal, or because it lost its launcher"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
