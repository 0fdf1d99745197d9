"""A run in one process: the learner in its main thread, actors and inference workers in threads beside it."""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from podium.core.errors import EnvLostError
from podium.core.types import Tree
from podium.launch.builders import AnyLearner, Site, build_actor, build_inference, build_learner
from podium.launch.env_slots import keeps_env_snapshots, take_env_snapshots
from podium.launch.plan import Plan
from podium.launch.program import make_program
from podium.launch.wiring import Wiring
from podium.protocol.directory import Registration
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId
from podium.runs.accounting import ActorAccount, LearnerAccount, balance
from podium.runs.summary import Samples
from podium.workers.actor import Actor
from podium.workers.individual_actor import IndividualActor
from podium.workers.inference import InferenceWorker
from podium.workers.layout import make_layouts

LEAVE_LIMIT_S = 5.0
"""How long an actor may take to end its step once it is told to go."""
SWITCH_S = 0.0002
"""How long a thread may go on in Python while another waits to: an actor's simulator is idle until it gets its turn."""


class OneProcess:
    """The workers of a plan in one process, built from the same program as those of many.

    with OneProcess(plan, state, updates) as run, run.started():
        learn(run.learner, recorder, run.check)                  # check raises what a thread died of
    """

    learner: AnyLearner

    def __init__(self, plan: Plan, state: Tree, updates: int) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._plan, self._program = plan, make_program(plan)
        self._layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
        self._seen, self._since = -1, time.monotonic()
        self._switch_s = sys.getswitchinterval()
        self._built: dict[str, list[Registration]] = {}
        with ExitStack() as stack:  # what was made is closed again if something cannot be
            self._transport, self._stack = stack.enter_context(MemoryTransport()), stack
            learner = self._site("learner", 0)
            self.learner = build_learner(learner, state, updates, env_steps=0)
            self._announce("learner", learner)
            self.learner.publish()
            self._servers = [self._inference(index) for index in self._indices("inference")]
            self._sites = [self._site("actor", index) for index in self._indices("actor")]
            self._actors = [build_actor(site) for site in self._sites]
            if "env_snapshots" in state:
                self._load(updates, state["env_snapshots"])
            self._stack = stack.pop_all()
        assert isinstance(learner.account, LearnerAccount)
        self._account = learner.account
        workers = [*self._servers, *self._actors]
        self._threads = [threading.Thread(target=self._run, args=(w,), name="worker", daemon=True) for w in workers]

    def warm_up(self) -> None:
        """Compile everything; nothing is stepped."""
        for worker in (self.learner, *self._servers, *self._actors):
            worker.warm_up()

    def __enter__(self) -> "OneProcess":
        sys.setswitchinterval(SWITCH_S)
        self._since = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.stop.set()
        deadline = time.monotonic() + (self._plan.experiment.limits.hang_s if error is None else LEAVE_LIMIT_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        sys.setswitchinterval(self._switch_s)

    def close(self) -> None:
        """Close environments and streams."""
        self._stack.close()

    def snapshots(self, updates: int) -> list[Tree] | None:
        """Where the environments were after so many updates; None if a checkpoint cannot hold that."""
        return take_env_snapshots(self._slots, updates) if keeps_env_snapshots(self._plan) else None

    def check(self) -> None:
        """Raise what a worker died of, or EnvLostError if no environment has been stepped for long."""
        if self.error is not None:
            raise self.error
        produced = sum(account.produced for account in self._accounts().values())
        if produced != self._seen:
            self._seen, self._since = produced, time.monotonic()
        elif time.monotonic() - self._since > (limit_s := self._plan.experiment.limits.hang_s):
            raise EnvLostError(f"the environments have not finished a step for {limit_s:g} s (limits.hang_s)")

    def samples(self) -> Samples:
        """What the actors produced and what became of it, counted by both sides."""
        return balance(self._account.record, self._accounts(), running=not self.stop.is_set())

    @property
    def _slots(self) -> list:
        return [slot for site in self._sites for slot in site.slots]

    def _accounts(self) -> dict[str, ActorAccount]:
        pairs = ((f"{site.sender.worker}.0", site.account) for site in self._sites)
        return {name: account for name, account in pairs if isinstance(account, ActorAccount)}

    def _load(self, updates: int, snapshots: Sequence[Tree]) -> None:
        """Let the environments go on from where a checkpoint has them."""
        for slot, snapshot in zip(self._slots, snapshots, strict=True):
            slot.load(updates, snapshot)

    def _indices(self, role: str) -> range:
        return range(sum(group.count for group in self._program.groups if group.role == role))

    def _site(self, role: str, index: int) -> Site:
        sender = SenderId(index, 0)
        wiring = Wiring(self._program, role, sender, self._transport, self._find, self._stack)
        return Site(self._plan, self._layouts, wiring, sender, self._stack, self.stop)

    def _inference(self, index: int) -> InferenceWorker:
        site = self._site("inference", index)
        worker = build_inference(site)
        self._announce("inference", site)
        return worker

    def _announce(self, role: str, site: Site) -> None:
        entry = Registration(role, site.sender.worker, 0, "", 0, site.wiring.endpoints, ready=True)
        self._built.setdefault(role, []).append(entry)

    def _find(self, role: str, count: int) -> list[Registration]:
        found = self._built.get(role, [])
        assert len(found) == count, f"{role} is built after a worker that connects to it"
        return found

    def _run(self, worker: Actor | IndividualActor | InferenceWorker) -> None:
        try:
            worker.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - handed to the learner's thread, which raises it
            self.error = self.error or error
            self.stop.set()
