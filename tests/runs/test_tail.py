"""The end of a file is read without the rest, and each line that comes is read once."""

from pathlib import Path

import pytest

from podium.runs import tail
from podium.runs.tail import Follower, last_lines


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_the_last_lines_are_the_same_however_the_file_is_read(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "BLOCK", block)
    file = tmp_path / "log"
    for text in ("", "a", "a\n", "\n", "a\n\nb\n", "first\nsecond\nthird", "first\nsecond\nthird\n", "a\r\nb\r\n"):
        file.write_bytes(text.encode())
        lines = text.replace("\r", "").removesuffix("\n").split("\n") if text else []
        for count in range(5):
            assert last_lines(file, count) == (lines[-count:] if count else []), (text, count)


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as out:
        out.truncate(1 << 40)  # a hole: reading it whole would take all memory
        out.seek(0, 2)
        out.write(b"\nlast but one\nlast\n")
    assert last_lines(file, 2) == ["last but one", "last"]


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\n")
    assert last_lines(tmp_path / "log", 1) == ["�"]


def test_a_follower_reads_each_line_once_and_only_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("a\nb\nhal")
    follower = Follower(file, 2)
    assert follower.read() == ["b"]
    assert follower.read() == []
    with file.open("a") as out:
        out.write("f\nc")
    assert follower.read() == ["half"]
    assert follower.rest() == ["c"]
    assert follower.rest() == []


def test_a_file_that_is_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("long enough\n")
    follower = Follower(file, 0)
    file.write_text("new\n")
    assert follower.read() == ["new"]
    (tmp_path / "draft").write_text("another, and longer than that\n")
    (tmp_path / "draft").replace(file)
    assert follower.read() == ["another, and longer than that"]
