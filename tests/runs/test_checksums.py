"""Checksums find any change of any file."""

import shutil
import subprocess
from pathlib import Path

import pytest

from podium.runs.checksums import verify_checksums, write_checksums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "sub" / "b").write_bytes(b"world")
    write_checksums(tmp_path)
    return tmp_path


def test_an_untouched_directory_verifies(folder: Path) -> None:
    verify_checksums(folder)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum on this machine")
def test_sha256sum_can_check_the_file(folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=True, timeout=30, capture_output=True)


def test_every_kind_of_damage_names_the_file(folder: Path) -> None:
    (folder / "sub" / "b").write_bytes(b"worle")
    with pytest.raises(ValueError, match="sub/b was cut short or altered"):
        verify_checksums(folder)
    (folder / "sub" / "b").unlink()
    with pytest.raises(ValueError, match="sub/b is missing"):
        verify_checksums(folder)


def test_one_folder_can_be_checked_alone(folder: Path) -> None:
    (folder / "a").write_bytes(b"jello")
    verify_checksums(folder, under="sub")
    with pytest.raises(ValueError, match="a was"):
        verify_checksums(folder)


def test_damage_to_the_list_itself_is_damage(folder: Path) -> None:
    text = (folder / "SHA256SUMS").read_text()
    for broken in ("", text[: len(text) // 2], text.replace("sub/b", "sub/c"), "\n" + text[1:]):
        (folder / "SHA256SUMS").write_text(broken)
        with pytest.raises(ValueError, match=r"SHA256SUMS|altered|missing"):
            verify_checksums(folder)
