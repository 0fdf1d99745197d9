"""From a plan to the program that the orchestrator runs: who there is, and what flows between them."""

from typing import TYPE_CHECKING, Any

import jax

from podium.orchestrator.drawing import draw
from podium.orchestrator.program import Edge, Ends, Group, Program, Resources
from podium.workers.layout import Layouts, make_layouts
from podium.workers.replay_layout import make_replay_layouts

if TYPE_CHECKING:
    from podium.launch.plan import Plan

ROLES = "podium.launch.roles"


def make_program(plan: "Plan", payload: dict[str, Any]) -> Program:
    """Learner and actors; between them inference workers (served) and replay workers; evaluators beside them."""
    topology = plan.experiment.topology
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
    staleness = plan.experiment.topology.staleness
    where = "threads of one process" if plan.in_one_process else "processes of this machine"
    credit = f"{plan.slots} slot(s) of {plan.rows} environment(s), {plan.buffers} buffer(s) each"
    return f"{draw(make_program(plan, {}))}{credit}: at most {staleness} version(s) ahead; {where}\n"


def _edges(plan: "Plan", layouts: Layouts, readers: tuple[str, ...]) -> list[Edge]:
    def ends(schema: Any) -> Ends:
        return Ends(schema, schema)

    where = plan.transport
    kept_by = "replay" if plan.replay_workers else "learner"
    record, sharded = ends(layouts.record.schema), kept_by == "replay"
    edges = [
        Edge("samples", ("actor",), (kept_by,), schema=record, transport=where, sharded=sharded),
        Edge("parameters", ("learner",), readers, schema=ends(layouts.params.schema), transport=where),
    ]
    if plan.mode == "served":
        request, answer = ends(layouts.request.schema), ends(layouts.answer.schema)
        edges.append(Edge("inference", ("actor",), ("inference",), schema=request, reply=answer, transport=where))
    if sharded:
        asked = make_replay_layouts(plan.replay, layouts)
        request, answer = ends(asked.request.schema), ends(asked.answer.schema)
        edges.append(Edge("inference", ("learner",), ("replay",), schema=request, reply=answer, transport=where))
    return edges
