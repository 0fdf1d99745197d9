"""A full disk ends a run in one line, which says what stays and how the run goes on.

with full_disk_told(directory):
    train()
"""

from collections.abc import Iterator
from contextlib import contextmanager

from podium.core.errors import CheckpointError, TrainingError
from podium.core.files import is_full
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.summary import amend_summary, read_summary


@contextmanager
def full_disk_told(directory: RunDirectory) -> Iterator[None]:
    """Raise TrainingError where the run's disk is full, and leave no run behind that seems to be running."""
    try:
        yield
    except (OSError, CheckpointError) as error:
        if not is_full(error):
            raise
        if (read_summary(directory.path) or {}).get("status") == "running":
            amend_summary(directory.path, status="failed")
        raise TrainingError(_describe(directory)) from error


def _describe(directory: RunDirectory) -> str:
    saved = Checkpoints(directory.checkpoints).updates()
    stays = f"checkpoint {saved[-1]} stays" if saved else "there is no checkpoint yet"
    return (
        f"no space left on the disk of {directory.path}: {stays}; make room, then `podium resume {directory.argument}`"
    )
