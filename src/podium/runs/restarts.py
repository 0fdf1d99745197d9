"""Which workers of a run were restarted and why, in one line."""

from collections import Counter
from collections.abc import Mapping
from typing import Any


def describe_restarts(summary: Mapping[str, Any]) -> str | None:
    """A line of the summary's `restart_causes`, the commonest cause first; None where nothing was restarted.

    >>> describe_restarts({"restart_causes": {"actor-0": ["killed by SIGKILL"] * 3}})
    'restarted: actor-0 (3 times: killed by SIGKILL)'
    """
    told = []
    for worker, lines in (summary.get("restart_causes") or {}).items():
        times = {1: "once", 2: "twice"}.get(len(lines), f"{len(lines)} times")
        told.append(f"{worker} ({times}: {'; '.join(line for line, _ in Counter(lines).most_common(2))})")
    return f"restarted: {', '.join(told)}" if told else None
