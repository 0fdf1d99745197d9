"""Where every env step went, in files that outlive the processes that write them.

accounting/actor-2.5    what the sixth incarnation of actor 2 produced: counted by the actor, word by word
accounting/learner      what became of it: counted by the learner, from the arrays it received
accounting/replay-0     the same of a replay worker, where actors send to those

The files are mapped into memory: the system keeps what was written when a process is killed. The learner's record
is never read in half: it is written to two places in turn, and the newer whole one counts.
"""

import mmap
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np

from podium.runs.summary import Samples

RECENT = 1024
"""Fragments whose sizes an actor remembers: more than can be on their way, or in the learner's hands."""
REPORTED = 256
"""Of those, how many travel with a lease."""
HEAD = 4
ENDED, COPY = 1, 2
RECORD_BYTES = 1 << 20


class ActorAccount:
    """An actor's own count. `produced` grows with each env step, the rest with each fragment.

    account = ActorAccount.create(run.path / "accounting", worker=2, incarnation=5)
    account.produced += 16
    account.commit(sequence=0, steps=2048)
    """

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    @classmethod
    def create(cls, directory: Path, worker: int, incarnation: int) -> Self:
        """A new file for a new incarnation."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"actor-{worker}.{incarnation}"
        with path.open("xb") as file:
            file.truncate((HEAD + RECENT) * 8)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The account of another process, or of one that is dead."""
        with path.open("r+b") as file:
            return cls(np.frombuffer(mmap.mmap(file.fileno(), (HEAD + RECENT) * 8), np.int64))

    @classmethod
    def in_memory(cls) -> Self:
        """For an actor that shares its learner's process, and its fate."""
        return cls(np.zeros(HEAD + RECENT, np.int64))

    @property
    def produced(self) -> int:
        """Valid env steps made."""
        return int(self._words[0])

    @produced.setter
    def produced(self, steps: int) -> None:
        self._words[0] = steps

    @property
    def fragments(self) -> int:
        """Fragments committed."""
        return int(self._words[1])

    @property
    def unfinished(self) -> int:
        """Valid steps in fragments that were not full when the actor ended, counted there; 0 before."""
        return int(self._words[2])

    @property
    def ended(self) -> bool:
        """Whether the actor ended by itself, and could say what was unfinished."""
        return int(self._words[3]) == ENDED

    @property
    def is_copy(self) -> bool:
        """Whether this is what was last reported of an actor, which may not be all that it did."""
        return int(self._words[3]) == COPY

    def end(self, unfinished: int) -> None:
        """The actor's last word."""
        self._words[2] = unfinished
        self._words[3] = ENDED

    def commit(self, sequence: int, steps: int) -> None:
        """A fragment is on its way. Called just before it is."""
        self._words[HEAD + sequence % RECENT] = steps
        self._words[1] = sequence + 1

    def report(self, name: str, final: bool = False) -> bytes:
        """For a launcher that cannot read the file: the counts, and the sizes of as many fragments as can be out.

        It is final if the actor's process is dead.
        """
        last = range(max(0, self.fragments - REPORTED), self.fragments)
        words = [*map(int, self._words[:HEAD]), *map(self.steps_of, last)]
        return msgspec.json.encode(Report(name, words, final=final))

    def take(self, report: "Report") -> Self:
        """Become the account that a report was made of, as far as that went."""
        head, steps = report.words[:HEAD], report.words[HEAD:]
        self._words[:HEAD] = head
        if head[3] != ENDED and not report.final:
            self._words[3] = COPY
        for sequence, size in enumerate(steps, self.fragments - len(steps)):
            self._words[HEAD + sequence % RECENT] = size
        return self

    def steps_of(self, sequence: int) -> int:
        """Steps of one of the last fragments committed."""
        return int(self._words[HEAD + sequence % RECENT])


class Report(msgspec.Struct):
    """An account as it travels with a lease: of an actor its counts, of a learner or replay worker its record."""

    name: str  # that of its file
    words: list[int] = []
    record: "AccountRecord | None" = None
    final: bool = False


NOTHING = Report("", [0] * HEAD)


class ActorEntry(msgspec.Struct):
    """What the learner knows of one incarnation of an actor."""

    received: int = 0  # valid steps
    lost: int = 0  # valid steps of fragments that never came
    next_sequence: int = 0  # all fragments before it are booked
    produced: int = 0  # the actor's count at that point
    ahead: dict[int, int] = {}  # fragments booked beyond it, and their steps


class AccountRecord(msgspec.Struct):
    """The learner's record, or a replay worker's."""

    trained: int = 0
    stale: int = 0
    undone: int = 0
    incarnations: dict[str, ActorEntry] = {}
    keeper: int = -1  # the last incarnation of the replay worker that keeps it
    number: int = 0  # grows with each change: of two copies, the one with the higher number is newer


class Booking(NamedTuple):
    """A fragment as the accounts know it: whose and which it is, and its valid steps."""

    incarnation: str  # "2.5": the sixth incarnation of actor 2
    sequence: int
    steps: int
    produced: int  # the actor's count after it
    stale: int = 0  # of the steps, those that were too old to be trained on


class LearnerAccount:
    """The learner's count, kept through its own deaths.

    account = LearnerAccount(run.path / "accounting")
    account.open(trained=counts.env_steps)                       # as its checkpoint knows
    if account.arrive(booking): ...                              # False: it is recorded already
    account.trained([booking, ...])                              # an update was made of them
    """

    def __init__(self, directory: Path | None, name: str = "learner") -> None:
        self._file = None if directory is None else _Twice(directory / name)
        stored = None if self._file is None else self._file.read()
        self.record = AccountRecord() if stored is None else msgspec.json.decode(stored, type=AccountRecord)
        self._lock = threading.Lock()  # one thread trains, another takes in the next batch
        self._arrived: dict[str, tuple[int, int]] = {}  # of each incarnation: next sequence, and its count so far

    def take_over(self, reports: Iterable[bytes], name: str = "learner") -> None:
        """Go on from what a predecessor on another host last reported, if that is newer than what is here."""
        for report in map(decode_report, reports):
            if report.name == name and report.record is not None and report.record.number > self.record.number:
                self.record = report.record

    def open(self, trained: int) -> None:
        """Begin, or go back to a checkpoint: what was trained on and it does not know of is undone."""
        self.record.undone += max(0, self.record.trained - trained)
        self.record.trained = trained
        self._write()

    def begin(self, incarnation: int) -> None:
        """A replay worker begins an incarnation. No two may have the same: the learner knows by it what it has
        counted."""
        self.record.keeper = incarnation
        self._write()

    def arrive(self, booking: Booking) -> bool:
        """A fragment is here. Those of the same incarnation that should have come before it and did not are lost.

        False if it is booked already, because its learner died before it gave the buffer back, or has come before.
        """
        with self._lock:
            return self._arrive(*booking[:4])

    def _arrive(self, incarnation: str, sequence: int, steps: int, produced: int) -> bool:
        entry = self.record.incarnations.setdefault(incarnation, ActorEntry())
        if sequence < entry.next_sequence or sequence in entry.ahead:
            return False
        expected, count = self._arrived.get(incarnation, (entry.next_sequence, entry.produced))
        if sequence < expected:
            return False
        known = sum(n for i, n in entry.ahead.items() if expected <= i < sequence)
        missing = [i for i in range(expected, sequence) if i not in entry.ahead]
        if missing:
            gap = produced - steps - count - known
            entry.lost += gap
            self._book(entry, missing[0], gap)
            for i in missing[1:]:
                self._book(entry, i, 0)
        self._arrived[incarnation] = (sequence + 1, produced)
        return True

    def trained(self, bookings: Iterable[Booking]) -> None:
        """An update was made of these: all of them are booked, or none."""
        with self._lock:
            self._receive(bookings)
            self._write()

    def stale(self, bookings: Iterable[Booking]) -> None:
        """These came too late to be trained on."""
        self.trained(booking._replace(stale=booking.steps) for booking in bookings)

    def report(self, name: str) -> bytes:
        """For a launcher that cannot read the file."""
        with self._lock:
            return msgspec.json.encode(Report(name, record=self.record))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _receive(self, bookings: Iterable[Booking]) -> None:
        for incarnation, sequence, steps, _, stale in bookings:
            entry = self.record.incarnations[incarnation]
            entry.received += steps
            self.record.trained += steps - stale
            self.record.stale += stale
            self._book(entry, sequence, steps)

    @staticmethod
    def _book(entry: ActorEntry, sequence: int, steps: int) -> None:
        entry.ahead[sequence] = steps
        while entry.next_sequence in entry.ahead:
            entry.produced += entry.ahead.pop(entry.next_sequence)
            entry.next_sequence += 1

    def _write(self) -> None:
        self.record.number += 1
        self.write()

    def write(self) -> None:
        """Put the record into its file."""
        if self._file is not None:
            self._file.write(msgspec.json.encode(self.record))


def tally(directory: Path, since: int = 0, running: bool = False, reports: Iterable[bytes] = ()) -> Samples:
    """The run's samples, from both counts. `since`: the first incarnation of the present session.

    What an actor of this session had under way when it ended by itself (or has, if the run is `running`) is in
    flight; what the others had under way when they died is lost. `reports` count for workers whose files are not here;
    of two accounts of a learner or replay worker, the one with the higher `number` counts.
    """
    records = {
        name: _read(directory, name) for name in ("learner", *_replays(directory)) if (directory / name).exists()
    }
    actors = {path.name: ActorAccount.open(path) for path in _accounts(directory)}
    for report in map(decode_report, reports):
        if report.record is None:
            actors.setdefault(report.name, ActorAccount.in_memory().take(report))
        elif report.name not in records or records[report.name].number < report.record.number:
            records[report.name] = report.record
    own = {name.removeprefix("actor-"): account for name, account in actors.items()}
    return balance(merge(list(records.values())), own, since, running)


def last_report(directory: Path, role: str, index: int) -> bytes:
    """What the files here say of a worker whose process is dead; empty if it kept no account."""
    actors = sorted(directory.glob(f"{role}-{index}.*"), key=lambda path: int(path.suffix[1:]))
    if actors:
        return ActorAccount.open(actors[-1]).report(actors[-1].name, final=True)
    for name in (role, f"{role}-{index}"):
        if (directory / name).exists():
            return msgspec.json.encode(Report(name, record=_read(directory, name), final=True))
    return b""


def save_reports(directory: Path, reports: Iterable[bytes]) -> None:
    """Keep in files what workers on other hosts have reported, for the run's later sessions."""
    for report in map(decode_report, reports):
        if report.record is not None:
            account = LearnerAccount(directory, report.name)
            account.take_over([msgspec.json.encode(report)], report.name)
            account.write()
            account.close()
        elif not (directory / report.name).exists():
            worker, _, incarnation = report.name.removeprefix("actor-").partition(".")
            ActorAccount.create(directory, int(worker), int(incarnation)).take(report)


def decode_report(report: bytes) -> Report:
    """What `report` of an account has encoded."""
    return msgspec.json.decode(report, type=Report)


def go_back(directory: Path, trained: int) -> None:
    """Replay workers begin empty, for a learner whose checkpoint knows of so many steps: what they took in beyond those
    is undone. It is recorded on the learner's account; the learner stores no samples itself."""
    beyond = tally(directory).trained - trained
    if beyond > 0:
        account = LearnerAccount(directory)
        account.open(account.record.trained - beyond)
        account.close()


def merge(accounts: Sequence[AccountRecord]) -> AccountRecord:
    """All of them as one: each incarnation of an actor is in one of them."""
    return AccountRecord(
        trained=sum(account.trained for account in accounts),
        stale=sum(account.stale for account in accounts),
        undone=sum(account.undone for account in accounts),
        incarnations={
            incarnation: entry for account in accounts for incarnation, entry in account.incarnations.items()
        },
    )


def _read(directory: Path, name: str) -> AccountRecord:
    account = LearnerAccount(directory, name)
    account.close()
    return account.record


def balance(
    record: AccountRecord, actors: Mapping[str, ActorAccount], since: int = 0, running: bool = False
) -> Samples:
    """Senders' and receiver's counts side by side: what they differ by stays in `Samples.unexplained`."""
    produced = lost = in_flight = unknown = 0
    for incarnation in {**actors, **record.incarnations}:
        entry = record.incarnations.get(incarnation, ActorEntry())
        actor = actors.get(incarnation) or ActorAccount.in_memory().take(NOTHING)
        arrived = entry.received + entry.lost
        made = max(actor.produced, arrived) if actor.is_copy else actor.produced
        produced += made
        lost += entry.lost
        of_this_session = int(incarnation.partition(".")[2]) >= since
        if of_this_session and actor.ended:
            under_way = (i for i in range(entry.next_sequence, actor.fragments) if i not in entry.ahead)
            in_flight += actor.unfinished + sum(actor.steps_of(i) for i in under_way)
        elif of_this_session and running:
            in_flight += made - arrived
        else:
            lost += max(0, made - arrived)
            unknown += actor.is_copy
    return Samples(
        produced=produced,
        trained=record.trained,
        stale=record.stale,
        lost=lost,
        undone=record.undone,
        in_flight=in_flight,
        unknown_workers=unknown,
    )


def next_incarnation(directory: Path) -> int:
    """Greater than that of every actor and replay worker with an account here: a resumed run's begin with it."""
    actors = [int(path.name.rpartition(".")[2]) for path in _accounts(directory)]
    return 1 + max([*actors, *(_read(directory, name).keeper for name in _replays(directory))], default=-1)


def _replays(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("replay-*")) if directory.is_dir() else []


def _accounts(directory: Path) -> list[Path]:
    return sorted(directory.glob("actor-*")) if directory.is_dir() else []


@dataclass
class _Record:
    number: int
    data: bytes


class _Twice:
    """A small record in a mapped file, written in turn to two places: one of them is always whole."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, 2) < 2 * RECORD_BYTES:
                file.truncate(2 * RECORD_BYTES)
            self._map = mmap.mmap(file.fileno(), 2 * RECORD_BYTES)
        newest = self._newest()
        self._number = 0 if newest is None else newest.number

    def read(self) -> bytes | None:
        """The newest whole record."""
        newest = self._newest()
        return None if newest is None else newest.data

    def write(self, data: bytes) -> None:
        """Over the older one of the two; number and checksum come last."""
        if len(data) > RECORD_BYTES - 16:
            raise ValueError(f"a record of {len(data)} bytes: at most {RECORD_BYTES - 16} fit")
        self._number += 1
        start = (self._number % 2) * RECORD_BYTES
        self._map[start : start + 16] = bytes(16)
        self._map[start + 16 : start + 16 + len(data)] = data
        head = self._number.to_bytes(8, "little") + len(data).to_bytes(4, "little")
        self._map[start : start + 16] = head + zlib.crc32(data).to_bytes(4, "little")

    def close(self) -> None:
        """Unmap."""
        self._map.close()

    def _newest(self) -> _Record | None:
        whole = [slot for slot in (self._slot(0), self._slot(RECORD_BYTES)) if slot is not None]
        return max(whole, key=lambda slot: slot.number, default=None)

    def _slot(self, start: int) -> _Record | None:
        number = int.from_bytes(self._map[start : start + 8], "little")
        size = int.from_bytes(self._map[start + 8 : start + 12], "little")
        check = int.from_bytes(self._map[start + 12 : start + 16], "little")
        data = self._map[start + 16 : start + 16 + size]
        return _Record(number, data) if number and zlib.crc32(data) == check else None
