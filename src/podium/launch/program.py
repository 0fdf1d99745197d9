"""From a plan to the program that the orchestrator runs: who there is, and what flows between them."""

from typing import TYPE_CHECKING, Any

import jax

from podium.launch.replay_share import make_share
from podium.orchestrator.drawing import draw
from podium.orchestrator.program import UNKNOWN, Edge, Ends, Group, Program, Resources
from podium.protocol.schema import Schema
from podium.workers.layout import Layouts, make_layouts
from podium.workers.replay_layout import TURNS, make_replay_layouts

if TYPE_CHECKING:
    from podium.launch.plan import Plan

ROLES = "podium.launch.roles"
REPLY_LIMIT_S = 10.0
"""How long an inference worker may take for a request; it compiles before it announces itself."""
ROWS_LIMIT_S = 3600.0
"""How long a replay worker may take: it answers when there are steps enough, which random play may need long for. The
death of one is noticed otherwise, and its successor is asked again."""


def make_program(plan: "Plan", payload: dict[str, Any] | None = None) -> Program:
    """Learner and actors; between them inference workers (served) and replay workers; evaluators beside them."""
    topology, payload = plan.experiment.topology, payload or {}
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    core = Resources(cpus=1)
    # Where there is an accelerator, it is for those who compute in large batches.
    device = core if jax.default_backend() == "cpu" else Resources(cpus=1, platform="gpu")
    groups = [
        Group("learner", 1, f"{ROLES}:learner", payload, device),
        Group("actor", plan.actors, f"{ROLES}:actor", payload, core),
    ]
    readers = ["actor"]
    if plan.mode == "served":
        groups.append(Group("inference", topology.inference_workers, f"{ROLES}:inference", payload, device))
        readers.append("inference")
    if plan.replay_workers:
        groups.append(Group("replay", plan.replay_workers, f"{ROLES}:replay", payload, core))
    if topology.evaluators:
        groups.append(Group("evaluator", topology.evaluators, f"{ROLES}:evaluator", payload, core))
        readers.append("evaluator")
    return Program(tuple(groups), tuple(_edges(plan, layouts, tuple(readers))))


def draw_program(plan: "Plan") -> str:
    """The program as text, and what keeps its parts in step."""
    where = "threads of one process" if plan.in_one_process else "processes of this machine"
    credit = f"{plan.slots} slot(s) of {plan.envs} environment(s), {plan.credits} buffer(s) each"
    return f"{draw(make_program(plan))}{credit}: at most {plan.schedule.ahead} version(s) ahead; {where}\n"


def _edges(plan: "Plan", layouts: Layouts, readers: tuple[str, ...]) -> list[Edge]:
    where, keeper = plan.transport, "replay" if plan.replay_workers else "learner"
    record, params = _both(layouts.record.schema), _both(layouts.params.schema)
    sharded = keeper == "replay"
    edges = [
        Edge("samples", ("actor",), (keeper,), "main", record, UNKNOWN, where, sharded, plan.slots, plan.credits),
        Edge("parameters", ("learner",), readers, schema=params, transport=where),
    ]
    if plan.mode == "served":
        request, reply = _both(layouts.request.schema), _both(layouts.answer.schema)
        size = plan.slots, 1, plan.rows
        edges.append(
            Edge("inference", ("actor",), ("inference",), "main", request, reply, where, False, *size, REPLY_LIMIT_S)
        )
    if sharded:
        asked, share = make_replay_layouts(plan.replay, layouts), make_share(plan, layouts)
        request, reply = _both(asked.request.schema), _both(asked.answer.schema)
        size = TURNS, 1, share.updates * share.rows
        edges.append(
            Edge("inference", ("learner",), ("replay",), "main", request, reply, where, False, *size, ROWS_LIMIT_S)
        )
    return edges


def _both(schema: Schema) -> Ends:
    return Ends(schema, schema)
