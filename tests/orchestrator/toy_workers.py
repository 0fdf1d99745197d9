"""Entry functions of workers that only live and die. They must not import jax: processes start by the dozen."""

import os
import signal
import sys
from pathlib import Path

from podium.core.errors import ConfigError, TrainingError
from podium.orchestrator.program import Edge, Group, Program
from podium.orchestrator.worker import WorkerContext

HERE = "orchestrator.toy_workers"
BEAT_S = 0.01


def group(role: str, function: str, count: int = 1, restart: bool = True, **payload: object) -> Group:
    """A group of toy workers: `group("actor", "work", 2)`."""
    return Group(role, count, f"{HERE}:{function}", payload, restart=restart)


def program(learner: Group, *others: Group) -> Program:
    """The learner and groups that send samples to it."""
    roles = tuple(other.role for other in others)
    return Program((learner, *others), (Edge("samples", roles, ("learner",)),) if others else ())


def work(context: WorkerContext) -> None:
    """Make progress until told to stop."""
    context.membership.announce({"samples": f"memory://{context.role}/{context.index}/{context.incarnation}"})
    while not context.stop.wait(BEAT_S):
        context.membership.progress += 1
        context.membership.metrics = {"beats": context.membership.progress}


def learn(context: WorkerContext) -> None:
    """Finish when the file `until` exists; write what was seen of the actors to `seen`."""
    context.membership.announce({"samples": "memory://learner"})
    until = Path(context.payload["until"])
    while not context.stop.wait(BEAT_S):
        context.membership.progress += 1
        if until.exists():
            return
    if "checkpoint" in context.payload:
        Path(context.payload["checkpoint"]).write_text("written when told to stop")


def follow(context: WorkerContext) -> None:
    """An actor that looks its learner up, notes every incarnation that it sees, and makes progress."""
    context.membership.announce({})
    while not context.stop.wait(BEAT_S):
        if found := context.membership.wait_for("learner", 1, timeout=0.2):
            context.membership.progress += 1
            context.membership.metrics = {"learner": found[0].incarnation}


def crash(context: WorkerContext) -> None:
    """Die of an exception, at once."""
    raise RuntimeError(f"the toy broke in incarnation {context.incarnation}")


def crash_with_progress(context: WorkerContext) -> None:
    """Die of an exception, but never without having done something."""
    context.membership.progress += 1
    raise RuntimeError("again")


def misconfigured(context: WorkerContext) -> None:
    """Find that the user's input is wrong."""
    raise ConfigError("env.num_envs = 0: must be at least 1")


def hopeless(context: WorkerContext) -> None:
    """Find that training cannot go on."""
    context.membership.progress += 1
    raise TrainingError("the loss is not finite at update 7")


def die_once(context: WorkerContext) -> None:
    """Be killed in the first incarnation, work in the second."""
    if context.incarnation == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    work(context)


def leave_early(context: WorkerContext) -> None:
    """Return without having been told to, in the first incarnation."""
    if context.incarnation:
        work(context)


def deaf(context: WorkerContext) -> None:
    """Never look at stop."""
    context.membership.announce({})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def parent(context: WorkerContext) -> None:
    """Start a process that does not end by itself, write its pid to `child`, and work."""
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(context.payload["child"]).write_text(str(child.pid))
    work(context)


def environment(context: WorkerContext) -> None:
    """Write what a worker can see of itself to `seen`, for the test to compare."""
    import json

    names = ("JAX_PLATFORMS", "OMP_NUM_THREADS", "NPROC", "XLA_FLAGS")
    seen = {name: os.environ.get(name) for name in names}
    seen |= {"jax": "jax" in sys.modules, "session": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read()}
    seen |= {
        "secret": context.keys is not None and context.keys.server_secret is not None,
        "host": context.host.identity,
    }
    Path(context.payload["seen"], f"{context.role}.json").write_text(json.dumps(seen))
    print("said on stdout")
    print("said on stderr", file=sys.stderr)
    work(context)
