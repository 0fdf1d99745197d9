"""Where metrics are shown beside their file: TensorBoard, and Weights & Biases."""

import os
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from podium.core.errors import ConfigError
from podium.core.extras import install_line
from podium.core.imports import suggest

FLUSH_S = 2.0
LIMIT_S = 60.0
"""No disk takes longer for two seconds' worth of rows."""

GROUPS = {
    "episode_return": "episode",
    "episode_length": "episode",
    "episodes": "episode",
    "eval_return": "evaluation",
    "steps_per_s": "run",
    "wall_s": "run",
    "staleness": "run",
    "update": "run",
}


class Tracker(Protocol):
    """Takes each row of a run, made by `TRACKERS[name](directory, experiment, last_step)`."""

    def write(self, row: dict[str, Any]) -> None:
        """Take one row, and be quick about it."""
        ...

    def flush(self) -> None:
        """Make all rows so far visible."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


def to_tag(name: str) -> str:
    """Where a metric is shown: `episode/episode_return`, `train/loss`; a name with a slash has its own place."""
    return name if "/" in name else f"{GROUPS.get(name, 'train')}/{name}"


class TensorBoard:
    """Event files with env steps as x axis.

    One event holds a whole row, and rows are written every two seconds by a thread: the training loop
    pays for appending to a list.
    """

    def __init__(self, directory: Path, experiment: dict[str, Any], last_step: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder = directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"), f".{os.getpid()}.{time.time_ns()}")
        self._protocol: tuple[Any, Any] = event_pb2, summary_pb2  # generated, so type checkers see nothing in them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tensorboard")
        self._pending: Future[None] | None = None
        self._rows: list[tuple[float, dict[str, Any]]] = []
        self._flushed = time.monotonic()
        if last_step is not None:
            self._hide_after(last_step)

    def write(self, row: dict[str, Any]) -> None:
        """Keep the row for the next batch."""
        self._rows.append((time.time(), row))
        if time.monotonic() - self._flushed > FLUSH_S:
            self._submit()

    def flush(self) -> None:
        """Write everything so far, and wait for it."""
        self._submit()
        self._wait()

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._thread.shutdown()
        self._events.close()

    def _submit(self) -> None:
        self._wait()  # an error of the last batch surfaces here
        rows, self._rows = self._rows, []
        self._flushed = time.monotonic()
        self._pending = self._thread.submit(self._write_batch, rows)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result(LIMIT_S)
            self._pending = None

    def _write_batch(self, rows: list[tuple[float, dict[str, Any]]]) -> None:
        event_pb2, summary_pb2 = self._protocol
        for wall_time, row in rows:
            values = [
                summary_pb2.Summary.Value(tag=to_tag(name), simple_value=value)
                for name, value in row.items()
                if name != "step" and isinstance(value, int | float)
            ]
            step = row.get("step", row.get("update", 0))
            summary = summary_pb2.Summary(value=values)
            self._events.write_event(event_pb2.Event(wall_time=wall_time, step=step, summary=summary))
        self._events.flush()

    def _hide_after(self, step: int) -> None:
        """Tell TensorBoard to forget what an interrupted run had written beyond its checkpoint."""
        event_pb2, _ = self._protocol
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._events.write_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start))
        self._events.flush()


class WeightsAndBiases:
    """A run in the project `podium`, named like the run directory; WANDB_* variables say where it goes."""

    def __init__(self, directory: Path, experiment: dict[str, Any], last_step: int | None) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "podium"),
            id=keep_id(directory / "wandb"),
            name=directory.name,
            dir=str(directory),
            config=experiment,
            resume="allow",  # goes on with the run of that id, if there is one
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, row: dict[str, Any]) -> None:
        """Hand the row to wandb's own process."""
        self._run.log({name if name == "step" else to_tag(name): x for name, x in row.items() if x is not None})

    def flush(self) -> None:
        """Nothing to do: wandb has the rows already."""

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, dict[str, Any], int | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def keep_id(folder: Path) -> str:
    """An id of this run that no other has, the same each time: what a resumed run is found by."""
    file = folder / "id"
    folder.mkdir(exist_ok=True)
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text()


def used_trackers(directory: Path) -> tuple[str, ...]:
    """Those that a run has written to: each has a folder of its name."""
    return tuple(name for name in TRACKERS if (directory / name).is_dir())


def require_trackers(names: Iterable[str]) -> None:
    """Raise ConfigError unless each is known and installed; a run asks before its directory is made."""
    if isinstance(names, str):
        raise ConfigError(f"track = {names!r}: must be a list of names, such as [{names!r}]")
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--track {name}: must be {' or '.join(TRACKERS)}{suggest(name, TRACKERS)}")
        if name == "wandb" and find_spec("wandb") is None:
            raise ConfigError(f"--track wandb: wandb is not installed: {install_line('wandb')}")
