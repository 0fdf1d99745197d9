"""Builds the workers of a plan: roles.py runs them as processes, one_process.py as threads.

actor = build_actor(Site(plan, layouts, wiring, sender, stack, stop))
actor.warm_up()
actor.run(stop)
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from podium.algorithms.algorithm import Individuals
from podium.core.types import Tree
from podium.launch.env_slots import close_slots, make_individual_slots, make_slots
from podium.launch.plan import Plan
from podium.launch.reconnect import Reconnect
from podium.launch.replay_share import make_share, updates_of_a_round
from podium.launch.waiting import first_update
from podium.launch.wiring import Wiring
from podium.ops.random_keys import random_keys, run_key
from podium.protocol.membership import Membership
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import InferenceClient, ParameterReader, SampleSender
from podium.runs.accounting import ActorAccount, LearnerAccount
from podium.workers.action_sources import ActionSource, InlineActions
from podium.workers.actor import Actor
from podium.workers.individual_actor import IndividualActor, read_mean
from podium.workers.individual_learner import IndividualLearner
from podium.workers.individual_slot import IndividualSlot
from podium.workers.inference import InferenceWorker
from podium.workers.layout import Layouts
from podium.workers.learner import Learner
from podium.workers.replay import ReplayWorker
from podium.workers.replay_layout import make_replay_layouts
from podium.workers.replay_learner import ReplayLearner
from podium.workers.replay_requests import Asked, ReplayRequests
from podium.workers.served_actions import ServedActions
from podium.workers.slot import EnvSlot

ACCOUNTS_LIMIT_S = 30.0
AnyLearner = Learner | IndividualLearner | ReplayLearner


@dataclass
class Site:
    """What a worker is built from: the plan, its streams, and the process around it.

    The defaults are those of a thread beside the learner: accounts in memory, no membership to reconnect by, no
    watchdog. `sender` names this worker to its peers; `incarnation` counts its restarts in this session.
    """

    plan: Plan
    layouts: Layouts
    wiring: Wiring
    sender: SenderId
    stack: ExitStack
    stop: threading.Event
    incarnation: int = 0
    membership: Membership | None = None
    accounting: Path | None = None
    beat: Callable[[dict[str, float]], None] = lambda metrics: None
    watchdog: Callable[[], None] = lambda: None
    be_patient: Callable[[], None] = lambda: None
    slots: list[EnvSlot] | list[IndividualSlot] = field(default_factory=list)
    account: ActorAccount | LearnerAccount | None = None

    def heard(self, servers: Callable[[list[InferenceClient]], None] | None = None) -> dict[str, Any]:
        """What a worker calls while it works (`beat`), and while it waits (`reconnect`)."""
        return {"beat": self.beat, "reconnect": self.reconnect(servers)}

    def reconnect(self, servers: Callable[[list[InferenceClient]], None] | None = None) -> Callable[[], None]:
        """A function that moves this worker's streams to peers that have come back elsewhere."""
        if self.membership is None:
            return lambda: None
        return Reconnect(self.membership, self.wiring.connections, servers)

    def open_learner_account(self, name: str = "learner") -> LearnerAccount:
        """The account of a worker that takes fragments in."""
        self.account = account = LearnerAccount(self.accounting, name)
        self.stack.callback(account.close)
        if self.membership is not None:  # a predecessor may have been on another host
            account.take_over(self.membership.fetch_accounts(ACCOUNTS_LIMIT_S), name)
        self._report(account, name)
        return account

    def open_actor_account(self) -> ActorAccount:
        """The account of an actor."""
        where = self.accounting
        self.account = account = ActorAccount.in_memory() if where is None else ActorAccount.create(where, *self.sender)
        self._report(account, "actor-{}.{}".format(*self.sender))
        return account

    def _report(self, account: ActorAccount | LearnerAccount, name: str) -> None:
        if self.membership is not None:
            self.membership.report_account = partial(account.report, name)


def build_actor(site: Site) -> Actor | IndividualActor:
    """An actor with its share of the environments. Waits for the first parameters."""
    if isinstance(site.plan.algorithm.experience, Individuals):
        return _build_individual_actor(site)
    plan, layouts = site.plan, site.layouts
    reader, clients = site.wiring.read_parameters(), site.wiring.request()
    site.be_patient()
    source = _action_source(plan, layouts, reader, clients)
    # With staleness, a served actor reads no parameters itself: the replies tell their versions.
    apart = reader if clients and not plan.schedule.in_turns else None
    update = first_update(source, site.stop, apart)
    site.watchdog()  # environments have no longer to start than to step
    slots = make_slots(plan, layouts, site.sender.worker, update, site.incarnation)
    sender = _open_samples(site, slots)
    servers = source.replace if isinstance(source, ServedActions) else None
    return Actor(slots, source, sender, layouts, plan.algorithm.rollouts, **_options(site), **site.heard(servers))


def _build_individual_actor(site: Site) -> IndividualActor:
    """Where actors draw individuals by themselves, each incarnation draws others."""
    plan, layouts = site.plan, site.layouts
    mean = read_mean(layouts, site.wiring.read_parameters())
    site.be_patient()
    update = first_update(mean, site.stop)
    site.watchdog()
    slots = make_individual_slots(plan, layouts, site.sender.worker, update, site.incarnation)
    sender = _open_samples(site, slots)
    own = () if plan.schedule.in_turns else (*site.sender, update)
    options = {"seed": [plan.experiment.seed, *own], "num_envs": plan.experiment.env.num_envs, **_options(site)}
    return IndividualActor(slots, mean, sender, layouts, plan.algorithm, **options, **site.heard())


def _open_samples(site: Site, slots: list[EnvSlot] | list[IndividualSlot]) -> SampleSender:
    site.be_patient()
    site.slots = slots
    site.stack.callback(close_slots, slots)
    site.open_actor_account()
    return site.wiring.send_samples()


def _options(site: Site) -> dict[str, Any]:
    experiment = site.plan.experiment
    key = random_keys(run_key(experiment.seed)).play
    return {"key": key, "account": site.account, "schedule": site.plan.schedule}


def _action_source(
    plan: Plan, layouts: Layouts, reader: ParameterReader, clients: list[InferenceClient]
) -> ActionSource:
    if plan.mode == "inline":
        return InlineActions(plan.algorithm, layouts, reader, plan.schedule)
    return ServedActions(clients, layouts, reader if plan.schedule.in_turns else None)


def build_inference(site: Site) -> InferenceWorker:
    """A worker that chooses actions for all actors that ask."""
    plan, topology = site.plan, site.plan.experiment.topology
    server, reader = site.wiring.serve_requests(), site.wiring.read_parameters()
    rows, wait_s = plan.inference_rows, topology.inference_wait_ms / 1e3
    return InferenceWorker(plan.algorithm, site.layouts, server, reader, rows, wait_s, **site.heard())


def build_replay(site: Site) -> ReplayWorker:
    """A worker that keeps its shard of the replay buffer."""
    plan, layouts, (index, incarnation) = site.plan, site.layouts, site.sender
    experience = replace(plan.replay, capacity=plan.replay.capacity // plan.replay_workers)
    receiver, server = site.wiring.receive_samples(), site.wiring.serve_requests()
    account = site.open_learner_account(f"replay-{index}")
    account.begin(incarnation)
    key = random_keys(run_key(plan.experiment.seed)).draw
    key = jax.random.fold_in(jax.random.fold_in(key, index), incarnation)
    shapes, share = make_replay_layouts(experience, layouts), make_share(plan, layouts)
    return ReplayWorker(experience, layouts, shapes, receiver, server, account, share, key, incarnation, site.beat)


def build_learner(site: Site, state: Tree, updates: int, env_steps: int) -> AnyLearner:
    """The learner of a plan, from a training state on."""
    plan, layouts, wiring = site.plan, site.layouts, site.wiring
    version, key = Version(site.incarnation, updates), random_keys(run_key(plan.experiment.seed)).learn
    publisher = wiring.publish_parameters()
    if plan.replay_workers:
        shapes, share = make_replay_layouts(plan.replay, layouts), make_share(plan, layouts)
        clients, asked = wiring.request(), Asked(share.updates, share.rows)
        requests, train = ReplayRequests(shapes, clients, asked, site.reconnect()), jax.device_put(state["train"])
        rest = key, version, requests, publisher, updates_of_a_round(plan)
        return ReplayLearner(plan.algorithm, layouts, train, state["store"], *rest)
    receiver, account = wiring.receive_samples(), site.open_learner_account()
    if site.accounting is not None:
        account.open(env_steps)
    rest = key, version, receiver, publisher, account, plan.schedule
    if isinstance(plan.algorithm.experience, Individuals):
        devices = jax.local_devices()[: plan.devices]
        return IndividualLearner(plan.algorithm, layouts, state["train"], *rest, devices)
    train, store = jax.device_put((state["train"], state["store"]))
    return Learner(plan.algorithm, layouts, train, store, *rest, plan.slots, site.watchdog)
