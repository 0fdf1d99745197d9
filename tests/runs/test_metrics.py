"""Metrics are valid JSON lines, survive kills, and continue on resume as if nothing had happened."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from podium.core.errors import ConfigError
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.trackers import keep_id, to_tag, used_trackers


def row(update: int) -> dict[str, Any]:
    return {"update": update, "step": 10 * update, "episode_return": update + 0.5, "loss": 1 / update}


def write_rows(path: Path, updates: range, resume_update: int | None = None, track: tuple[str, ...] = ()) -> None:
    with MetricsLog(path, track, resume_update=resume_update) as log:
        for update in updates:
            log.write(row(update))


def read_events(folder: Path) -> Iterator[Any]:
    for file in sorted(folder.iterdir(), key=lambda file: int(file.name.rpartition(".")[2])):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_rows(tmp_path, range(1, 4))
    assert read_metrics(tmp_path) == read_metrics(tmp_path / "metrics.jsonl") == [row(1), row(2), row(3)]


def test_a_row_is_on_the_disk_before_write_returns(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, ()) as log:
        log.write(row(1))
        assert read_metrics(tmp_path) == [row(1)]


def test_scalars_of_numpy_and_jax_become_plain_numbers(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, ()) as log:
        log.write({"step": np.int64(3), "a": np.float32(0.5), "b": jnp.asarray(0.25), "c": None, "d": True, "e": "x"})
    assert read_metrics(tmp_path) == [{"step": 3, "a": 0.5, "b": 0.25, "c": None, "d": True, "e": "x"}]


def test_what_is_not_finite_is_valid_json_and_comes_back(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, ()) as log:
        log.write({"step": 1, "loss": float("nan"), "up": float("inf"), "down": -np.inf, "fine": 1.0})
    raw = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: 1 / 0)
    assert raw["loss"] is None
    assert raw["not_finite"] == {"loss": "nan", "up": "inf", "down": "-inf"}
    (back,) = read_metrics(tmp_path)
    assert np.isnan(back["loss"])
    assert (back["up"], back["down"], back["fine"]) == (np.inf, -np.inf, 1.0)
    assert "not_finite" not in back


@pytest.mark.parametrize("tail", ['{"update": 4, "st', '{"update": 4}', '{"update": 4\n', "\x00"])
def test_a_half_written_last_line_is_left_out_and_dropped_on_resume(tmp_path: Path, tail: str) -> None:
    write_rows(tmp_path, range(1, 4))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(tail)
    assert read_metrics(tmp_path) == [row(1), row(2), row(3)]
    write_rows(tmp_path, range(4, 5), resume_update=3)
    assert read_metrics(tmp_path) == [row(1), row(2), row(3), row(4)]


def test_a_resumed_file_equals_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "whole", range(1, 9))
    write_rows(tmp_path / "resumed", range(1, 7))  # killed at 6, its checkpoint is of 4
    write_rows(tmp_path / "resumed", range(5, 9), resume_update=4)
    whole, resumed = (tmp_path / name / "metrics.jsonl" for name in ("whole", "resumed"))
    assert whole.read_bytes() == resumed.read_bytes()


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_tensorboard_has_every_row_over_env_steps(tmp_path: Path) -> None:
    write_rows(tmp_path, range(1, 301), track=("tensorboard",))
    events = [event for event in read_events(tmp_path / "tensorboard") if event.summary.value]
    assert [event.step for event in events] == [10 * update for update in range(1, 301)]
    values = {value.tag: value.simple_value for value in events[1].summary.value}
    assert values == {"run/update": 2.0, "episode/episode_return": 2.5, "train/loss": 0.5}


def test_tensorboard_forgets_what_a_resumed_run_went_back_on(tmp_path: Path) -> None:
    write_rows(tmp_path, range(1, 7), track=("tensorboard",))
    write_rows(tmp_path, range(5, 7), resume_update=4, track=("tensorboard",))
    events = list(read_events(tmp_path / "tensorboard"))
    (start,) = [event for event in events if event.HasField("session_log")]
    assert start.session_log.status == event_pb2.SessionLog.START
    assert start.step == 41  # hides 50 and 60 of the first run, not 40
    assert [event.step for event in events[events.index(start) :] if event.summary.value] == [50, 60]


def test_flush_makes_rows_visible(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write(row(1))
        log.flush()
        assert any(event.step == 10 for event in read_events(tmp_path / "tensorboard"))


def test_tags_are_grouped() -> None:
    names = ["episode_return", "steps_per_s", "loss", "mine/own"]
    assert [to_tag(name) for name in names] == [
        "episode/episode_return",
        "run/steps_per_s",
        "train/loss",
        "mine/own",
    ]


def test_an_unknown_tracker_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--track tensorbord.*tensorboard or wandb.*did you mean 'tensorboard'"):
        MetricsLog(tmp_path, ("tensorbord",))
    assert list(tmp_path.iterdir()) == []


def test_wandb_that_is_not_installed_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [])  # so that it is not found, installed or not
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[wandb\]'"):
        MetricsLog(tmp_path, ("wandb",))


def test_a_directory_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        MetricsLog(tmp_path, ())


def test_a_resumed_run_goes_on_with_the_trackers_that_it_had(tmp_path: Path) -> None:
    assert used_trackers(tmp_path) == ()
    write_rows(tmp_path, range(1, 3), track=("tensorboard",))
    assert used_trackers(tmp_path) == ("tensorboard",)
    first = keep_id(tmp_path / "wandb")  # as its tracker begins
    assert used_trackers(tmp_path) == ("tensorboard", "wandb")
    assert keep_id(tmp_path / "wandb") == first != keep_id(tmp_path / "tensorboard")


def test_tensorboard_forgets_everything_if_a_run_begins_again(tmp_path: Path) -> None:
    write_rows(tmp_path, range(1, 7), track=("tensorboard",))
    write_rows(tmp_path, range(1, 3), resume_update=0, track=("tensorboard",))
    (start,) = [event for event in read_events(tmp_path / "tensorboard") if event.HasField("session_log")]
    assert start.step == 1
    assert read_metrics(tmp_path) == [row(1), row(2)]
