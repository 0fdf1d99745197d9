"""Progress is a bar on a terminal, lines in a log, and nothing if it is disabled."""

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podium.runs.progress import Due, Lines, Progress, Report, format_time

REPORT = Report(step=25_000, total_steps=100_000, elapsed_s=75, episode_return=231.44, steps_per_s=1000, note="saved")


def test_a_line_has_return_speed_time_left_and_elapsed() -> None:
    assert str(REPORT) == " 25%  1:15 elapsed  25,000 steps  return 231  1,000 steps/s  1:15 left  saved"


def test_what_is_not_known_yet_is_left_out() -> None:
    assert str(Report(0, 10, 0, None, None, "")) == "  0%  0:00 elapsed  0 steps"


def test_a_limit_of_time_that_is_nearer_than_the_last_step_counts() -> None:
    soon = replace(REPORT, wall_s=90.0, wall_limit_s=100.0)
    assert str(soon) == " 90%  1:15 elapsed  25,000 steps  return 231  1,000 steps/s  0:10 left  saved"
    late = replace(REPORT, wall_s=90.0, wall_limit_s=10_000.0)
    assert (late.part, late.left_s) == (0.25, 75.0)
    assert replace(soon, steps_per_s=None).left_s == 10.0
    assert replace(soon, wall_s=101.0).fields()["left"] == "0:00 left"


def test_times_read_like_a_clock() -> None:
    assert [format_time(s) for s in (0, 9.9, 75, 7384)] == ["0:00", "0:09", "1:15", "2:03:04"]


def test_due_says_yes_at_first_and_then_once_in_a_period() -> None:
    due = Due(1000)
    assert [due(), due(), due()] == [True, False, False]
    assert [Due(0)() for _ in range(3)] == [True, True, True]


def test_a_log_gets_the_first_line_what_is_said_and_the_last() -> None:
    lines: list[str] = []
    display = Lines(lines.append)
    reports = [Report(step, 100, 0, None, None, "") for step in range(0, 101, 10)]
    for report in reports:
        display.show(report)
    display.say("saved")
    display.stop(reports[-1])
    assert lines == [str(reports[0]), "saved", str(reports[-1])]


def test_a_pipe_gets_plain_lines_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(100) as progress:
        progress.say("[fused] why")
        progress.update(50, 1.0, 10.0)
        progress.update(100, 2.0, 10.0, note="done")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("[fused] why\n")
    assert err.splitlines()[-1].startswith("100%  0:00 elapsed  100 steps  return 2.00  10 steps/s  0:00 left")
    assert "\x1b" not in err


def test_what_is_said_stays_in_the_log_even_if_the_screen_is_disabled(tmp_path: Path) -> None:
    for line in ("first", "second"):
        with Progress(100, enabled=False, log=tmp_path / "log.txt") as progress:
            progress.say(line)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[len("2026-01-31 12:34:56 ") :] for line in lines] == ["first", "second"]


def test_a_closed_output_is_noted_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `podium train ... 2>&1 | head` leaves it: a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed, Progress(100, log=tmp_path / "log.txt") as progress:
        monkeypatch.setattr(sys, "stderr", closed)
        progress.say("first")
        progress.update(50, 1.0, 10.0)
        progress.say("second")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is still buffered goes nowhere
    said = [line[len("2026-01-31 12:34:56 ") :] for line in (tmp_path / "log.txt").read_text().splitlines()]
    gone = "nothing more is shown, because the output is closed (Broken pipe); training goes on"
    assert said == ["first", gone, "second"]


def test_disabled_it_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(100, enabled=False) as progress:
        progress.say("x")
        progress.update(50)
    assert capfd.readouterr() == ("", "")


ON_A_TERMINAL = """
from podium.runs.progress import Progress
with Progress(100_000) as progress:
    progress.say("[fused] because")
    progress.update(25_000, episode_return=231.44, steps_per_s=1000.0)
"""


def test_a_terminal_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    process = subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL], stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal's other end was closed: the program has ended
        pass
    finally:
        os.close(ours)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    for part in ("[fused] because", "━", "25%", "25,000 steps", "return 231", "1,000 steps/s", "1:15 left"):
        assert part in text
