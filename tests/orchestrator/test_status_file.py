"""The status of a run: written whole, when something changed or a second has passed."""

from dataclasses import replace
from pathlib import Path

import pytest

from podium.core.errors import PodiumError
from podium.orchestrator.status import RunStatus, StatusFile, WorkerStatus, read_status, write_status

ACTOR = WorkerStatus("actor", 1, 2, 4321, "here", "running", 1000.5, 2, 77, {"steps_per_s": 12.5})
STATUS = RunStatus(1234, "here", "running", "", [ACTOR])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    write_status(path, STATUS)
    assert read_status(path) == STATUS
    assert list(tmp_path.iterdir()) == [path]  # no draft is left


def test_a_metric_that_is_not_finite_is_none(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, replace(STATUS, workers=[replace(ACTOR, metrics={"loss": float("nan")})]))
    read = read_status(path)
    assert read is not None
    assert read.workers[0].metrics == {"loss": None}


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text('{"launcher": "me"}')
    with pytest.raises(PodiumError, match=r"status\.json' is not the status of a run"):
        read_status(path)


def test_it_is_written_on_change_and_once_a_second_otherwise(tmp_path: Path) -> None:
    now, path = [1000.0], tmp_path / "status.json"
    file = StatusFile(path, clock=lambda: now[0])

    def offered(progress: int, state: str = "running") -> int:
        now[0] += 0.3
        file.offer(replace(STATUS, workers=[replace(ACTOR, progress=progress, state=state)]))
        read = read_status(path)
        assert read is not None
        return read.workers[0].progress

    assert [offered(1), offered(2), offered(3), offered(4), offered(5)] == [1, 1, 1, 1, 5]
    assert offered(6, "restarting") == 6
    read = read_status(path)
    assert read is not None
    assert read.written == pytest.approx(1001.8)
