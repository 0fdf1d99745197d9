"""SHA256SUMS of a directory, in the form that `sha256sum --check` reads, so that damage is found before it is used."""

import hashlib
from pathlib import Path

FILE = "SHA256SUMS"


def write_checksums(directory: Path) -> None:
    """Record the sha256 of every file under the directory."""
    lines = [f"{_digest(path)}  {path.relative_to(directory)}\n" for path in _files(directory)]
    (directory / FILE).write_text("".join(lines))


def verify_checksums(directory: Path, under: str = "") -> None:
    """Raise ValueError naming the first file that is missing or altered; `under` looks at one folder only.

    verify_checksums(checkpoints / "120");  verify_checksums(checkpoints / "120", under="header")
    """
    lines = [line.partition("  ") for line in (directory / FILE).read_text().splitlines()]
    recorded = {name: digest for digest, _, name in lines}
    for path in _files(directory / under):
        if str(path.relative_to(directory)) not in recorded:
            raise ValueError(f"{FILE} does not list {path.relative_to(directory)}")
    for name, digest in recorded.items():
        if not Path(name).is_relative_to(under):
            continue
        if not (directory / name).is_file():
            raise ValueError(f"{name} is missing")
        if _digest(directory / name) != digest:
            raise ValueError(f"{name} was cut short or altered")


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != FILE)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
