"""Reads a run's checkpoint back, and says so where it is not the newest."""

import sys

from podium.core.types import Tree
from podium.runs.checkpoint import Checkpoints, Restored
from podium.runs.directory import RunDirectory


def restore(
    directory: RunDirectory, template: Tree, part: str | None = None, best: bool = False, read: bool = True
) -> Restored:
    """The newest checkpoint that is whole, or the best one; newer ones that cannot be read are told on stderr.

    state = restore(run, template).tree
    """
    checkpoints = Checkpoints(directory.checkpoints)
    restored = checkpoints.restore(template, update=checkpoints.best() if best else None, part=part, read=read)
    for note in restored.notes:
        print(f"warning: {note}; going on from checkpoint {restored.update}", file=sys.stderr)
    return restored
