"""Files that other processes read at any time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def write_whole(path: Path, content: str) -> None:
    """Replace the file's text at once."""
    with drafted(path) as draft:
        draft.write_text(content, encoding="utf-8")
