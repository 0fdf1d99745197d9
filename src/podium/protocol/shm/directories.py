"""Directories of shared memory: who owns one holds a lock on a file in it, so that what the dead left can be found.

owned = create_directory("run-17")           # /dev/shm/podium-run-17
...                                          # hand owned.path to the other processes
owned.remove()
sweep()                                      # at the next start: removes what killed owners could not
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podium.core.errors import StreamError

SHARED_MEMORY = Path("/dev/shm")
ROOT = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
PREFIX = "podium-"
OWNER = "owner"
MAKING_S = 60.0  # for making a directory, which takes milliseconds: one that is older was left by the dead


@dataclass
class OwnedDirectory:
    """A directory whose lock this process holds, until it removes it or dies."""

    path: Path
    lock: int | None
    shared: bool = False

    def remove(self) -> None:
        """Remove the directory and all in it, unless others share it, then let go. May be called twice."""
        if self.lock is None:
            return
        with contextlib.suppress(BlockingIOError):
            if self.shared:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)
        self.lock = None


def create_directory(name: str, root: Path = ROOT) -> OwnedDirectory:
    """A new directory `podium-NAME`, readable by this user alone, locked from the moment it has this name."""
    path, hidden = root / f"{PREFIX}{name}", root / f".{PREFIX}{secrets.token_hex(6)}"
    hidden.mkdir(mode=0o700)
    lock = os.open(hidden / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(hidden, path)
    except OSError as error:
        os.close(lock)
        shutil.rmtree(hidden)
        raise StreamError(f"{path} cannot be made: {error.strerror}") from None
    return OwnedDirectory(path, lock)


def join_directory(name: str, root: Path = ROOT) -> OwnedDirectory:
    """The directory `podium-NAME`, made by the first process of this host that joins it.

    All that have joined hold it together: `sweep` leaves it alone while one of them lives, and the last to leave
    removes it.
    """
    path = root / f"{PREFIX}{name}"
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(lock), os.stat(path / OWNER)):
                return OwnedDirectory(path, lock, shared=True)
            os.close(lock)
        except FileNotFoundError:
            continue  # the last of those before us has just removed it
        except OSError as error:
            raise StreamError(f"{path} cannot be made: {error.strerror}") from None


@contextmanager
def shared_directory(name: str) -> Iterator[Path]:
    """A directory of one run on this host, removed at the end; what killed owners left behind is removed first."""
    sweep()
    owned = create_directory(f"{name[:100]}-{os.getpid()}-{secrets.token_hex(3)}")
    try:
        yield owned.path
    finally:
        owned.remove()


def describe_lack(nbytes: int) -> str | None:
    """Why shared memory cannot take so many bytes; None: it can."""
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return f"{SHARED_MEMORY} cannot be written"
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free >= nbytes:
        return None
    return f"{SHARED_MEMORY} has {free / 2**20:,.1f} MB free, and the run's streams need {nbytes / 2**20:,.1f}"


def sweep(root: Path = ROOT) -> list[Path]:
    """Remove the directories whose owner is gone, and say which. Those of the living and of others stay."""
    made = [path for path in sorted(root.glob(f"{PREFIX}*")) if remove_if_abandoned(path)]
    return made + [path for path in sorted(root.glob(f".{PREFIX}*")) if remove_if_half_made(path)]


def remove_if_abandoned(path: Path) -> bool:
    """Whether the directory had no living owner and has been removed."""
    try:
        lock = os.open(path / OWNER, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # not made by create_directory, just removed, or another user's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def remove_if_half_made(path: Path) -> bool:
    """Whether somebody was killed while he made this directory, and it has been removed. It has no lock yet to tell."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return False  # it has its name now
    if about.st_uid != os.getuid() or time.time() - about.st_mtime < MAKING_S:
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
