"""An actor's share of a plan's environments, in slots, and where they stand for a checkpoint."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

from podium.algorithms.algorithm import Individuals
from podium.core.types import Tree
from podium.envs.interface import HostEnv
from podium.launch.plan import Plan
from podium.orchestrator.program import share
from podium.workers.individual_slot import IndividualSlot
from podium.workers.layout import Layouts, make_layouts
from podium.workers.slot import EnvSlot

AnySlot = TypeVar("AnySlot", EnvSlot, IndividualSlot)


def make_slots(plan: Plan, layouts: Layouts, actor: int, update: int, incarnation: int) -> list[EnvSlot]:
    """The slots of one actor, with their environments."""
    num_envs, agents = plan.experiment.env.num_envs, len(plan.env.spec.agents)
    rollouts = plan.algorithm.rollouts
    exploration = np.repeat(rollouts.exploration(np.arange(num_envs), num_envs).astype(np.float32), agents)

    seeds = _seeds(plan, update, incarnation)
    names = [f"environment {i} ({plan.experiment.env.id}, seed {seed})" for i, seed in enumerate(seeds)]

    def make(number: int, env: HostEnv) -> EnvSlot:
        mine = slice(number * plan.rows, (number + 1) * plan.rows)
        return EnvSlot(number, env, layouts, rollouts.discount, update, exploration[mine], names[mine])

    return _make_each(plan, actor, update, incarnation, make)


def make_individual_slots(
    plan: Plan, layouts: Layouts, actor: int, update: int, incarnation: int
) -> list[IndividualSlot]:
    """The same for an actor that plays individuals."""
    individuals, memory = plan.algorithm.experience, layouts.request.tree(layouts.request.schema.fields).memory
    assert isinstance(individuals, Individuals)

    def make(number: int, env: HostEnv) -> IndividualSlot:
        return IndividualSlot(number, env, layouts.params, memory, individuals, update)

    return _make_each(plan, actor, update, incarnation, make)


def _make_each(
    plan: Plan, actor: int, update: int, incarnation: int, make: Callable[[int, HostEnv], AnySlot]
) -> list[AnySlot]:
    seeds = _seeds(plan, update, incarnation)
    slots = []
    with ExitStack() as stack:
        for number in share(plan.slots, plan.actors, actor):
            env = plan.env.make_host(seeds[number * plan.envs : (number + 1) * plan.envs])
            stack.callback(env.close)
            slots.append(make(number, env))
        stack.pop_all()
    return slots


def _seeds(plan: Plan, update: int, incarnation: int) -> np.ndarray:
    """Seeds belong to environments, whichever actor steps them.

    A resumed run or a restarted actor has other ones: it would repeat its episodes.
    """
    entropy = [plan.experiment.seed, update, *([incarnation] if incarnation else [])]
    return np.random.SeedSequence(entropy).generate_state(plan.experiment.env.num_envs) >> 1  # libraries take 31 bits


def keeps_env_snapshots(plan: Plan) -> bool:
    """Whether checkpoints hold where the environments are, if these can tell.

    In one process, and with a learner that waits for them: else they are somewhere in fragments that it has not seen.
    """
    return plan.mode != "fused" and plan.in_one_process and plan.schedule.in_turns


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
        return take_env_snapshots(slots, updates=0)
    finally:
        close_slots(slots)


def take_env_snapshots(slots: Sequence[EnvSlot | IndividualSlot], updates: int) -> list[Tree] | None:
    """Where the environments of these slots were after so many updates; None if one cannot tell."""
    snapshots = [slot.snapshots.at(updates) for slot in slots]
    return None if any(snapshot is None for snapshot in snapshots) else snapshots


def close_slots(slots: Sequence[EnvSlot | IndividualSlot]) -> None:
    """Close their environments."""
    for slot in slots:
        slot.env.close()
