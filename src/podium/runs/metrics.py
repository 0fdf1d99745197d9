"""metrics.jsonl, a JSON line for each report, and its copies in the trackers."""

import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from podium.core.errors import ConfigError
from podium.runs.trackers import TRACKERS, Tracker, require_trackers

NOT_FINITE = "not_finite"
"""Key of a row that says which of its nulls stand for nan, inf or -inf: JSON has none of them."""


class MetricsLog:
    """The open log of a run.

    with MetricsLog(run.path, track=("tensorboard",), experiment=to_dict(experiment)) as log:
        log.write({"update": 1, "step": 2048, "wall_s": 0.4, "episode_return": 21.5, "loss": 0.3})

    `resume_update`: rows after this update are dropped, because the checkpoint that a run goes on from (0: its start)
    does not know of them; so the file of a resumed run equals that of one never interrupted, but for its clock.
    """

    def __init__(
        self,
        directory: Path,
        track: Sequence[str] = ("tensorboard",),
        experiment: Mapping[str, Any] | None = None,
        resume_update: int | None = None,
    ) -> None:
        require_trackers(track)
        path = directory / "metrics.jsonl"
        try:
            last_step = cut_tail(path, resume_update)
            self._file = path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from None
        self._trackers: list[Tracker] = []
        try:
            for name in dict.fromkeys(track):
                self._trackers.append(TRACKERS[name](directory, dict(experiment or {}), last_step))
        except BaseException:
            self.close()
            raise

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one report; `step` (env steps) is its place on the x axis, `update` what resuming goes by."""
        values = {name: _plain(value) for name, value in row.items()}
        self._file.write(_to_line(values))
        for tracker in self._trackers:
            tracker.write(values)

    def flush(self) -> None:
        """Bring trackers up to date; the file always is. Before a checkpoint, so that a kill after it loses nothing."""
        for tracker in self._trackers:
            tracker.flush()

    def close(self) -> None:
        """Flush and close everything. Calling it twice is harmless."""
        self._file.close()
        while self._trackers:
            self._trackers.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rows of a run, given its directory or the file; a half-written last line is left out.

    rows = read_metrics(run.path);  rows[-1]["episode_return"]
    """
    # By its name: whether it is a directory changes while another process makes one.
    file = path if path.suffix == ".jsonl" else path / "metrics.jsonl"
    if not file.exists():
        return []
    return [row for _, row in _whole_rows(file)]


def _whole_rows(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Rows and the offset at which each ends, up to the first line that is not one: what was cut off by a kill."""
    rows, end = [], 0
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(row, dict):
            break
        end += len(line)
        rows.append((end, row | {name: float(value) for name, value in row.pop(NOT_FINITE, {}).items()}))
    return rows


def cut_tail(path: Path, resume_update: int | None) -> int | None:
    """Drop a half-written last line, and rows after `resume_update`; returns the step of the last row that stays."""
    if not path.exists():
        return None
    keep, last_step = 0, None if resume_update is None else 0
    for end, row in _whole_rows(path):
        if resume_update is not None and row.get("update", 0) > resume_update:
            break
        keep, last_step = end, row.get("step", last_step)
    os.truncate(path, keep)
    return last_step


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value)


def _to_line(values: Mapping[str, Any]) -> str:
    lost = {name: str(x) for name, x in values.items() if isinstance(x, float) and not math.isfinite(x)}
    if lost:
        values = {name: None if name in lost else x for name, x in values.items()} | {NOT_FINITE: lost}
    return json.dumps(values, allow_nan=False) + "\n"
