"""Files that other processes read at any time."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A hidden draft beside `path`, which replaces it at the end: a reader finds the old file or the new, never half.

    with drafted(run / "summary.json") as draft:
        draft.write_text(text)
    """
    draft = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file's content at once."""
    with drafted(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or its cause, is a disk without room, a used quota or a file at its size limit."""
    if error is None:
        return False
    by_number = isinstance(error, OSError) and error.errno in FULL
    # TensorStore, which writes checkpoints, has the system's words but not its error number.
    return by_number or any(os.strerror(code) in str(error) for code in FULL) or is_full(error.__cause__)
