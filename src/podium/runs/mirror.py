"""A run's directory kept in storage as it grows, and brought to another host from there.

claims/00000003                    learner incarnation 3 has begun: older ones write no checkpoint any more
checkpoints/00000003-000000120/    a checkpoint, by incarnation and update; SHA256SUMS comes last, and makes it one
experiment.toml metrics.jsonl summary.json logs/ ...            as in the run's directory
"""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from podium.core.errors import CheckpointError, FencedError, StorageError
from podium.core.files import write_whole
from podium.runs.checksums import FILE, verify_checksums
from podium.runs.directory import RunDirectory
from podium.runs.storage import Storage

FILES = ("metrics.jsonl", "summary.json")
"""What a learner writes, beside checkpoints."""
START = ("experiment.toml", "env.json", "deployment.json")
"""What a launcher writes, at the run's start."""
END = ("summary.json", "curve.png", "log.txt")
"""What it writes at its end."""
PERIOD_S = 5.0
BYTES_PER_S = 1 << 20
"""A file that grows is sent whole: so the larger it is, the less often."""
OUTAGE_S = 300.0
"""How long storage may fail before the learner does: its checkpoints are on one host only, meanwhile."""


class StoredCheckpoint(NamedTuple):
    """Compared in this order: a learner restored from a checkpoint is newer than its dead predecessor."""

    incarnation: int
    update: int

    @property
    def folder(self) -> str:
        """Where its files are."""
        return f"checkpoints/{self.incarnation:08d}-{self.update:012d}"


def stored_checkpoints(storage: Storage) -> list[StoredCheckpoint]:
    """Those that are whole, the oldest first."""
    names = [name.split("/") for name in storage.names("checkpoints") if name.endswith(f"/{FILE}")]
    return sorted(StoredCheckpoint(*map(int, parts[1].split("-"))) for parts in names if len(parts) == 3)


def last_claim(storage: Storage) -> int:
    """The newest incarnation of a learner that has begun; -1 if none has."""
    return max((int(name.rpartition("/")[2]) for name in storage.names("claims")), default=-1)


def fetch_checkpoint(storage: Storage, run: RunDirectory) -> StoredCheckpoint | None:
    """Bring the newest checkpoint that is whole to this host, in place of those that are here; None if there is none.

    Raises CheckpointError if there are some, and none can be read.
    """
    found = stored_checkpoints(storage)
    for stored in reversed(found):
        place, draft = run.checkpoints / str(stored.update), run.checkpoints / f"saving-{stored.update}"
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        for name in storage.names(stored.folder):
            storage.download(name, draft / name.removeprefix(f"{stored.folder}/"))
        try:
            verify_checksums(draft)
        except (OSError, ValueError):
            continue
        draft.rename(place)
        return stored
    if found:
        raise CheckpointError(f"{storage.url} has {len(found)} checkpoint(s), and none of them is whole")
    return None


def fetch_files(storage: Storage, run: RunDirectory, names: Sequence[str] = FILES) -> None:
    """Bring files to this host; those that are not stored are left as they are."""
    run.path.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (data := storage.read(name)) is not None:
            write_whole(run.path / name, data)


@contextmanager
def followed(storage: Storage | None, run: RunDirectory, period_s: float = PERIOD_S) -> Iterator[None]:
    """The launcher's side: while it lasts, what the learner has sent is brought here; at its end, all of it."""
    if storage is None:
        yield
        return
    leaving = threading.Event()

    def work() -> None:
        while not leaving.wait(period_s):
            with suppress(StorageError):  # it will come with the next
                fetch_files(storage, run)

    thread = threading.Thread(target=work, name="follow storage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()
    fetch_files(storage, run)
    fetch_checkpoint(storage, run)


class Mirror:
    """A learner's side: a thread sends what has changed in its run's directory, and new checkpoints at once.

    with Mirror(storage, run, incarnation=3) as mirror:
        ...
        mirror.check()                 # raises FencedError once a newer learner has begun

    Raises FencedError at its start if this incarnation has begun elsewhere. At its end everything is sent. A storage
    that does not answer is tried again, for `OUTAGE_S` seconds.
    """

    def __init__(self, storage: Storage, run: RunDirectory, incarnation: int, period_s: float = PERIOD_S) -> None:
        self._storage, self._run, self._incarnation, self._period_s = storage, run, incarnation, period_s
        if not storage.create(f"claims/{incarnation:08d}", b""):
            raise FencedError(f"learner incarnation {incarnation} has begun elsewhere: {storage.url}")
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change
        self._due: dict[str, float] = {}  # when a file may be sent again
        self._stored = {stored for stored in stored_checkpoints(storage) if stored.incarnation == incarnation}
        self._error: StorageError | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def check(self) -> None:
        """Raise the error that the thread has met."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        if self._error is None:
            self.send(everything=True)

    def send(self, everything: bool = False) -> None:
        """Send what has changed, and is due."""
        self._send_checkpoints()
        for name in FILES:
            self._send_file(name, everything)

    def _work(self) -> None:
        answered = time.monotonic()
        while self._error is None and not self._leaving.wait(self._period_s):
            try:
                self.send()
                answered = time.monotonic()
            except FencedError as error:
                self._error = error
            except StorageError as error:
                self._error = error if time.monotonic() - answered > OUTAGE_S else None

    def _send_file(self, name: str, everything: bool) -> None:
        path = self._run.path / name
        if not path.is_file():
            return
        about, now = path.stat(), time.monotonic()
        state = about.st_size, about.st_mtime_ns
        if self._sent.get(name) != state and (everything or now >= self._due.get(name, 0.0)):
            self._storage.upload(path, name)
            self._sent[name], self._due[name] = state, now + about.st_size / BYTES_PER_S

    def _send_checkpoints(self) -> None:
        here = {int(path.name): path for path in self._run.checkpoints.glob("*") if path.name.isdecimal()}
        own = {StoredCheckpoint(self._incarnation, update) for update in here}
        for stored in sorted(own - self._stored):
            if (newest := last_claim(self._storage)) > self._incarnation:
                raise FencedError(f"learner incarnation {newest} has taken over: this one, {self._incarnation}, ends")
            if self._send_checkpoint(stored, here[stored.update]):
                self._stored.add(stored)
        for stored in stored_checkpoints(self._storage) if own & self._stored else ():
            if stored not in own and stored.incarnation <= self._incarnation:
                self._storage.remove(f"{stored.folder}/{FILE}")  # first: without it, the rest is no checkpoint
                self._storage.remove(stored.folder)
                self._stored.discard(stored)

    def _send_checkpoint(self, stored: StoredCheckpoint, path: Path) -> bool:
        """Whether it was sent whole: one that is pruned meanwhile is not."""
        try:
            for file in sorted(path.rglob("*")):
                if file.is_file() and file.name != FILE:
                    self._storage.upload(file, f"{stored.folder}/{file.relative_to(path)}")
            sums = (path / FILE).read_bytes()
        except (FileNotFoundError, StorageError):
            if path.exists():
                raise
            self._storage.remove(stored.folder)
            return False
        self._storage.create(f"{stored.folder}/{FILE}", sums)
        return True


@contextmanager
def mirrored(storage: Storage | None, run: RunDirectory) -> Iterator[None]:
    """While it lasts, a run of this process is sent to storage, if it has some."""
    if storage is None:
        yield
        return
    with Mirror(storage, run, last_claim(storage) + 1):
        yield


class NoMirror:
    """Of a learner whose directory the launcher reads itself."""

    def check(self) -> None:
        """Nothing can be wrong."""
