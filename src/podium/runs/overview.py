"""How a run is at this moment, from outside: what its summary says, and its last report while it has not ended."""

import json
from typing import Any

from podium.runs.directory import RunDirectory
from podium.runs.summary import read_summary
from podium.runs.tail import last_lines

DIED = "died"
"""Status of a run whose summary says `running` though no process holds it: killed, or its disk was full."""


def current_summary(run: RunDirectory) -> dict[str, Any]:
    """The summary of a run as of now.

    Of a run that has not ended, steps, training return and rate are those of its last report, because summary.json is
    written at its start and its end only; its status is `died` where no process holds it any more.

    current_summary(run)["status"], current_summary(run)["env_steps"]
    """
    held = run.is_held()  # asked first: a run that ends meanwhile has written its summary before it lets go
    summary = read_summary(run.path) or {"status": "running"}
    if summary.get("status") != "running":
        return summary
    row, training = last_row(run), dict(summary.get("episode_return") or {})
    if "episode_return" in row:
        training |= {"mean": row["episode_return"]}
    return summary | {
        "status": "running" if held else DIED,
        "env_steps": row.get("step", summary.get("env_steps")),
        "updates": row.get("update", summary.get("updates")),
        "wall_s": row.get("wall_s", summary.get("wall_s")),
        "steps_per_s": row.get("steps_per_s", summary.get("steps_per_s")),
        "episode_return": training,
    }


def last_row(run: RunDirectory) -> dict[str, Any]:
    """The newest whole row of metrics.jsonl, without reading the others; empty if there is none."""
    if not run.metrics.exists():
        return {}
    for line in reversed(last_lines(run.metrics, 2)):
        try:
            return json.loads(line)
        except ValueError:  # it is being written: the one before it is whole
            continue
    return {}
