"""A program as text, for `--dry-run`."""

from collections.abc import Sequence

from podium.orchestrator.program import Edge, Group, Program
from podium.protocol.schema import Schema, describe

FEW = 4
ARROWS = {"samples": "──▶", "parameters": "──▶", "inference": "◀─▶"}


def draw(program: Program) -> str:
    """Groups with what they ask for, then the streams between them.

    workers
      learner  x1  cpu  2 cpus, 2 threads  podium.workers.learner:run
      actor    x4  cpu  1 cpu              podium.workers.actor:run
    streams
      actor    ──▶  learner  samples     main  shm  obs float32[129, 16, 4], reward float32[128, 16]
      learner  ──▶  actor    parameters  main  shm
    """
    lines = ["workers", *_aligned([_group_row(group) for group in program.groups])]
    if program.edges:
        lines += ["streams", *_aligned([_edge_row(edge) for edge in program.edges])]
    return "\n".join(lines) + "\n"


def _group_row(group: Group) -> list[str]:
    asked = group.resources
    parts = [_many(asked.cpus, "cpu")]
    if asked.gpus:
        parts.append(_many(asked.gpus, "gpu"))
    if asked.memory_mb:
        parts.append(f"{asked.memory_mb} MB")
    if asked.threads:
        parts.append(_many(asked.threads, "thread"))
    if asked.pool:
        parts.append(f"pool {asked.pool}")
    if not group.restart:
        parts.append("not restarted")
    return [group.role, f"x{group.count}", asked.platform, ", ".join(parts), group.entry]


def _edge_row(edge: Edge) -> list[str]:
    arrays = _arrays(edge.schema.sender or edge.schema.receiver)
    if reply := _arrays(edge.reply.sender or edge.reply.receiver):
        arrays = f"{arrays} ▷ {reply}"
    ends = ", ".join(edge.senders), ARROWS[edge.stream], ", ".join(edge.receivers)
    return [*ends, edge.stream, edge.policy, edge.transport, arrays]


def _arrays(schema: Schema | None) -> str:
    """All arrays where they are few; else the first one, and how much there is."""
    if schema is None:
        return ""
    if len(schema.fields) <= FEW:
        return ", ".join(map(describe, schema.fields))
    return f"{describe(schema.fields[0])} and {len(schema.fields) - 1} more arrays, {schema.nbytes / 1024:,.0f} KB"


def _many(number: float, thing: str) -> str:
    return f"{number:g} {thing}{'' if number == 1 else 's'}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
