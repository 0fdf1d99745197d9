"""The end of a file that another process writes: its last lines, and those that come."""

import os
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 16


def last_lines(path: Path, count: int, since: int = 0) -> list[str]:
    """The last lines from byte `since` on, without their line ends; reads only as much of the file as that takes.

    last_lines(run.logs / "actor-2.log", 20)
    """
    follower = Follower(path, count, since)
    return follower.read() + follower.rest()


class Follower:
    """Reads the lines that a file gets, from its last `count` ones on.

    follower = Follower(run.logs / "actor-2.log", count=20)
    while running:
        for line in follower.read(): ...
    """

    def __init__(self, path: Path, count: int, since: int = 0) -> None:
        self._path, self._unfinished, self._inode, self._offset = path, b"", 0, 0
        if path.exists():
            with path.open("rb") as file:
                self._inode, self._offset = os.fstat(file.fileno()).st_ino, max(since, _start_of_last(file, count))

    def read(self) -> list[str]:
        """Whole lines since the last call. A file that was replaced or cut is read from its beginning."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._inode or now.st_size < self._offset:
                self._inode, self._offset, self._unfinished = now.st_ino, 0, b""
            file.seek(self._offset)
            news = file.read()
        self._offset += len(news)
        *lines, self._unfinished = (self._unfinished + news).split(b"\n")
        return [_decode(line) for line in lines]

    def rest(self) -> list[str]:
        """What has come without a line end, when no more will come."""
        rest, self._unfinished = self._unfinished, b""
        return [_decode(rest)] if rest else []


def _start_of_last(file: BinaryIO, count: int) -> int:
    """Where the last `count` lines begin; a line without its end is one, too."""
    end = file.seek(0, os.SEEK_END)
    if count < 1 or not end:
        return end
    file.seek(end - 1)
    before = count if file.read(1) == b"\n" else count - 1  # line ends inside of what is looked for
    position = end
    while position:
        step = min(BLOCK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if before == 0:
                return position + at + 1
            before -= 1
    return 0


def _decode(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
