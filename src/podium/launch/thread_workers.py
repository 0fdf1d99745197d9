"""Actors of a plan: their share of the environments, and actors as threads of the learner's own process."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TypeVar

import jax
import numpy as np

from podium.algorithms.algorithm import Individuals
from podium.core.errors import EnvError
from podium.core.types import Tree
from podium.envs.interface import HostEnv
from podium.launch.plan import Plan
from podium.ops.random_keys import run_key
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId
from podium.protocol.streams import SampleSender
from podium.runs.accounting import ActorAccount, LearnerAccount, balance
from podium.runs.summary import Samples
from podium.workers.action_sources import ActionSource, InlineActions
from podium.workers.actor import Actor
from podium.workers.individual_actor import IndividualActor, Mean
from podium.workers.individual_slot import IndividualSlot
from podium.workers.inference import InferenceWorker
from podium.workers.layout import Layouts, make_layouts
from podium.workers.served_actions import ServedActions
from podium.workers.slot import EnvSlot

LEAVE_LIMIT_S = 5.0
"""How long an actor may take to end its step once it is told to go."""
REPLY_LIMIT_S = 60.0
SWITCH_S = 0.0002
"""How long a thread may go on in Python while another waits to: an actor's simulator is idle until it gets its turn."""

AnySlot = TypeVar("AnySlot", EnvSlot, IndividualSlot)


def credits(plan: Plan) -> int:
    """Buffers of one actor: its slots may be so many versions ahead of the learner, and no more."""
    return plan.buffers * plan.slots // plan.actors


def make_slots(plan: Plan, layouts: Layouts, actor: int, update: int, incarnation: int) -> list[EnvSlot]:
    """The slots of one actor, with their environments."""
    num_envs = plan.experiment.env.num_envs
    rollouts = plan.algorithm.rollouts
    exploration = rollouts.exploration(np.arange(num_envs), num_envs).astype(np.float32)

    def make(number: int, env: HostEnv) -> EnvSlot:
        mine = exploration[number * plan.rows : (number + 1) * plan.rows]
        return EnvSlot(number, env, layouts, rollouts.discount, update, mine)

    return _make_each(plan, actor, update, incarnation, make)


def make_individual_slots(
    plan: Plan, layouts: Layouts, actor: int, update: int, incarnation: int
) -> list[IndividualSlot]:
    """The same for an actor that plays memberships."""
    memberships, memory = plan.algorithm.experience, layouts.request.tree(layouts.request.schema.fields).memory
    assert isinstance(memberships, Individuals)

    def make(number: int, env: HostEnv) -> IndividualSlot:
        return IndividualSlot(number, env, layouts.params, memory, memberships, update)

    return _make_each(plan, actor, update, incarnation, make)


def _make_each(
    plan: Plan, actor: int, update: int, incarnation: int, make: Callable[[int, HostEnv], AnySlot]
) -> list[AnySlot]:
    """Seeds belong to environments, whoever steps them. A resumed run or a restarted actor has other ones: it would
    repeat its episodes.
    """
    entropy = [plan.experiment.seed, update, *([incarnation] if incarnation else [])]
    seeds = np.random.SeedSequence(entropy).generate_state(plan.experiment.env.num_envs) >> 1  # libraries take 31 bits
    share, slots = plan.slots // plan.actors, []
    with ExitStack() as stack:
        for number in range(actor * share, (actor + 1) * share):
            env = plan.env.make_host(seeds[number * plan.rows : (number + 1) * plan.rows])
            stack.callback(env.close)
            slots.append(make(number, env))
        stack.pop_all()
    return slots


def keeps_env_snapshots(plan: Plan) -> bool:
    """Whether checkpoints hold where the environments are, if these can tell.

    In one process, and with a learner that waits for them: else they are somewhere in fragments that it has not seen.
    """
    return plan.mode != "fused" and plan.in_one_process and plan.experiment.topology.staleness == 0


def find_env_snapshots(plan: Plan) -> list[Tree] | None:
    """What the first checkpoint would hold of where the environments are; None if they cannot tell."""
    if not keeps_env_snapshots(plan):
        return None
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    make = make_individual_slots if isinstance(plan.algorithm.experience, Individuals) else make_slots
    slots: list[EnvSlot | IndividualSlot] = []
    try:
        for actor in range(plan.actors):
            slots += make(plan, layouts, actor, update=0, incarnation=0)
        return _env_snapshots(slots, updates=0)
    finally:
        close_slots(slots)


def _env_snapshots(slots: Sequence[EnvSlot | IndividualSlot], updates: int) -> list[Tree] | None:
    snapshots = [slot.snapshots.at(updates) for slot in slots]
    return None if any(snapshot is None for snapshot in snapshots) else snapshots


def close_slots(slots: Sequence[EnvSlot | IndividualSlot]) -> None:
    """Close their environments."""
    for slot in slots:
        slot.env.close()


def make_actor(
    plan: Plan,
    layouts: Layouts,
    slots: Sequence[EnvSlot],
    policy: ActionSource,
    sender: SampleSender,
    account: ActorAccount,
    beat: Callable[[dict[str, float]], None] = lambda metrics: None,
    reconnect: Callable[[], None] = lambda: None,
) -> Actor:
    """An actor that draws its noise as the plan says."""
    _, key, _ = jax.random.split(run_key(plan.experiment.seed), 3)
    return Actor(
        slots,
        policy,
        sender,
        layouts,
        plan.algorithm.rollouts,
        key=key,
        account=account,
        staleness=plan.experiment.topology.staleness,
        beat=beat,
        reconnect=reconnect,
    )


def make_individual_actor(
    plan: Plan,
    layouts: Layouts,
    slots: Sequence[IndividualSlot],
    mean: Mean,
    sender_id: tuple[int, ...],
    sender: SampleSender,
    account: ActorAccount,
    beat: Callable[[dict[str, float]], None] = lambda metrics: None,
    reconnect: Callable[[], None] = lambda: None,
) -> IndividualActor:
    """An actor of a population. Where actors draw individuals by themselves, each `incarnation` of one draws others."""
    _, key, _ = jax.random.split(run_key(plan.experiment.seed), 3)
    staleness = plan.experiment.topology.staleness
    return IndividualActor(
        slots,
        mean,
        sender,
        layouts,
        plan.algorithm,
        key=key,
        seed=[plan.experiment.seed, *(sender_id if staleness else ())],
        num_envs=plan.experiment.env.num_envs,
        account=account,
        staleness=staleness,
        beat=beat,
        reconnect=reconnect,
    )


class Crew:
    """Actors, and in served mode inference workers, as threads beside the learner.

    with Crew(plan, layouts, transport, samples, parameters, update) as crew:    # endpoints of the learner
        crew.check()                                                             # raises what a thread died of
    """

    def __init__(
        self, plan: Plan, layouts: Layouts, transport: MemoryTransport, samples: str, parameters: str, update: int
    ) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._plan, self._layouts, self._transport, self._parameters = plan, layouts, transport, parameters
        self._stack = ExitStack()
        self._accounts: dict[str, ActorAccount] = {}
        self._slots: list[EnvSlot | IndividualSlot] = []
        self._seen, self._since = -1, time.monotonic()
        self._switch_s = sys.getswitchinterval()
        served = plan.experiment.topology.inference_workers if plan.mode == "served" else 0
        with self._stack:  # what was made is closed again if something cannot be
            self._servers = [self._inference() for _ in range(served)]
            self._actors = [self._actor(index, samples, update) for index in range(plan.actors)]
            self._stack = self._stack.pop_all()
        workers = [*(worker for worker, _ in self._servers), *self._actors]
        self._threads = [threading.Thread(target=self._run, args=(w,), name="worker", daemon=True) for w in workers]

    def warm_up(self) -> None:
        """Compile everything; nothing is stepped."""
        for worker, _ in self._servers:
            worker.warm_up()
        for actor in self._actors:
            actor.warm_up()

    def __enter__(self) -> "Crew":
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

    def load(self, updates: int, snapshots: Sequence[Tree]) -> None:
        """Before the threads start: let the environments go on from where a checkpoint has them."""
        for slot, snapshot in zip(self._slots, snapshots, strict=True):
            slot.load(updates, snapshot)

    def snapshots(self, updates: int) -> list[Tree] | None:
        """Where the environments were after so many updates; None if a checkpoint cannot hold that."""
        return _env_snapshots(self._slots, updates) if keeps_env_snapshots(self._plan) else None

    def close(self) -> None:
        """Close environments and streams."""
        self._stack.close()

    def check(self) -> None:
        """Raise what a worker died of, or EnvError if nobody has stepped for long."""
        if self.error is not None:
            raise self.error
        produced = sum(account.produced for account in self._accounts.values())
        if produced != self._seen:
            self._seen, self._since = produced, time.monotonic()
        elif time.monotonic() - self._since > (limit_s := self._plan.experiment.limits.hang_s):
            raise EnvError(f"the environments have not finished a step for {limit_s:g} s (limits.hang_s)")

    def samples(self, account: LearnerAccount) -> Samples:
        """What the actors produced and what became of it, counted by both sides."""
        return balance(account.record, self._accounts, running=not self.stop.is_set())

    def _actor(self, index: int, samples: str, update: int) -> Actor | IndividualActor:
        plan, layouts, sender_id = self._plan, self._layouts, SenderId(index, 0)
        if isinstance(plan.algorithm.experience, Individuals):
            reader = self._transport.parameter_reader(self._parameters, layouts.params.schema)
            mean = Mean(layouts.params, self._stack.enter_context(closing(reader)))
            slots = make_individual_slots(plan, layouts, index, update, incarnation=0)
            make = partial(make_individual_actor, plan, layouts, slots, mean, (index, update))
        else:
            slots = make_slots(plan, layouts, index, update, incarnation=0)
            make = partial(make_actor, plan, layouts, slots, self._policy(sender_id, len(slots)))
        self._slots += slots
        self._stack.callback(close_slots, slots)
        sender = self._transport.sample_sender(samples, layouts.record.schema, sender_id, credits(plan))
        self._stack.enter_context(closing(sender))
        account = self._accounts[f"{index}.0"] = ActorAccount.in_memory()
        return make(sender, account)

    def _policy(self, sender_id: SenderId, slots: int) -> ActionSource:
        plan, layouts, staleness = self._plan, self._layouts, self._plan.experiment.topology.staleness
        reader = self._transport.parameter_reader(self._parameters, layouts.params.schema)
        self._stack.enter_context(closing(reader))
        if plan.mode == "inline":
            return InlineActions(plan.algorithm, layouts, reader, staleness)
        clients = []
        for _, endpoint in self._servers:
            schemas = layouts.request.schema, layouts.answer.schema
            client = self._transport.inference_client(endpoint, *schemas, sender_id, [plan.rows] * slots, REPLY_LIMIT_S)
            clients.append(self._stack.enter_context(closing(client)))
        return ServedActions(clients, layouts, reader if staleness == 0 else None)

    def _inference(self) -> tuple[InferenceWorker, str]:
        plan, layouts, topology = self._plan, self._layouts, self._plan.experiment.topology
        server = self._transport.inference_server(layouts.request.schema, layouts.answer.schema)
        reader = self._transport.parameter_reader(self._parameters, layouts.params.schema)
        self._stack.enter_context(closing(server))
        self._stack.enter_context(closing(reader))
        rows, wait_s = plan.inference_rows, topology.inference_wait_ms / 1e3
        return InferenceWorker(plan.algorithm, layouts, server, reader, rows, wait_s), server.endpoint

    def _run(self, worker: Actor | IndividualActor | InferenceWorker) -> None:
        try:
            worker.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - handed to the learner's thread, which raises it
            self.error = self.error or error
            self.stop.set()
