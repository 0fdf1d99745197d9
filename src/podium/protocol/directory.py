"""Who is where, under leases: role and index -> endpoints, host, pid, incarnation. What is not renewed expires.

`podium.protocol.directory_server` answers for it over ZeroMQ, `podium.protocol.membership` is a worker's side of it.
There is one kind of request, a `Renewal` with all that its sender has to say: a directory that was started anew knows
everybody again after one round.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from podium.core.errors import RefusedError

LEASE_S = 5.0
RENEWALS = 6  # in one lease, so that some may be late or lost

State = Literal["unknown", "live", "expired", "withdrawn"]


@dataclass(frozen=True)
class Registration:
    """One worker, as it describes itself. `renewed` is the directory's own: when it was last heard, by its clock."""

    role: str
    index: int
    incarnation: int
    host: str
    pid: int
    endpoints: dict[str, str] = field(default_factory=dict)
    ready: bool = False  # it has announced its endpoints, if only to say that it has none
    progress: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    account: bytes = b""  # its accounting so far: for the launcher alone, which may share no disk with it
    renewed: float = 0.0

    @property
    def name(self) -> str:
        """`actor-3`."""
        return f"{self.role}-{self.index}"

    def place(self) -> tuple:
        """What others have to know of it; progress and metrics change all the time and are left out."""
        return self.role, self.index, self.incarnation, self.host, self.pid, self.endpoints, self.ready


@dataclass(frozen=True)
class Renewal:
    """What a worker sends: itself, which roles it wants to know of (None: all), which table it has, whether it leaves,
    and whether it wants all that workers have reported: accounts and metrics."""

    entry: Registration
    roles: list[str] | None = None
    epoch: int = -1
    leaving: bool = False
    reports: bool = False


@dataclass(frozen=True)
class News:
    """What it hears: whether to stop, how long a lease is, after how long a silence it may take the directory for lost,
    the table if it has changed, and why it was refused."""

    epoch: int
    stop: bool
    lease_s: float
    patience_s: float
    table: list[Registration] | None = None
    refused: str | None = None
    farewell: bool = False  # the answer to a renewal that said `leaving`
    accounts: list[bytes] | None = None
    metrics: dict[str, dict[str, float]] | None = None  # of each live worker, by its name


class _Row(NamedTuple):
    entry: Registration
    state: State


class Directory:
    """The table. Pure data behind a lock: any thread may ask, and time is what `clock` says.

    directory = Directory(lease_s=5)
    directory.renew(Registration("learner", 0, 0, host, pid, {"samples": "tcp://..."}))
    directory.live("learner"), directory.expired()
    """

    def __init__(
        self,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float | None = None,
    ) -> None:
        self.lease_s = lease_s
        self.patience_s = 2 * lease_s if patience_s is None else patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], _Row] = {}
        self._epoch = self._born = time.time_ns()  # so that no table of an earlier directory has the same number
        self._changes: dict[str, int] = {}  # the epoch of each role's last change
        self._look_at = -math.inf
        self._stop = False
        self._watchers: list[Callable[[], None]] = []
        self._accounts: dict[tuple[str, int, int], bytes] = {}

    def renew(self, entry: Registration) -> None:
        """Take or prolong a lease; the first call of an incarnation registers it.

        Raises RefusedError for an incarnation that has withdrawn or has been replaced by a newer one.
        """
        with self._locked():
            known = self._rows.get((entry.role, entry.index))
            if known and entry.incarnation < known.entry.incarnation:
                raise RefusedError(
                    f"{entry.name}: incarnation {entry.incarnation} was replaced by {known.entry.incarnation}"
                )
            if known and entry.incarnation == known.entry.incarnation and known.state == "withdrawn":
                raise RefusedError(f"{entry.name}: incarnation {entry.incarnation} has withdrawn")
            if known is None or known.state != "live" or known.entry.place() != entry.place():
                self._touch(entry.role)
            self._note_account(entry.role, entry.index, entry.incarnation, entry.account)
            self._rows[entry.role, entry.index] = _Row(replace(entry, account=b"", renewed=self._clock()), "live")

    def withdraw(self, role: str, index: int, incarnation: int) -> None:
        """This incarnation has ended: it is not found any more, and a late heartbeat of it is refused."""
        with self._locked():
            row = self._rows.get((role, index))
            if row and row.entry.incarnation > incarnation:
                return
            if row and row.state == "live":
                self._touch(role)
            if row is None or row.entry.incarnation < incarnation:  # it ended before it had registered
                row = _Row(Registration(role, index, incarnation, host="", pid=0), "unknown")
            self._rows[role, index] = _Row(row.entry, "withdrawn")

    def live(self, role: str | None = None) -> list[Registration]:
        """Workers whose lease runs, of one role or all, by role and index.

        For inspection, as in the tests of leases: the supervisor asks for `state`, and clients read `news`.
        """
        return self._select("live", role)

    def expired(self) -> list[Registration]:
        """Workers that neither renewed their lease nor withdrew. For inspection, as `live` is."""
        return self._select("expired")

    def state(self, role: str, index: int, incarnation: int) -> State:
        """What is known of one incarnation of a worker; "unknown" if it has never registered."""
        with self._locked():
            row = self._rows.get((role, index))
        return row.state if row and row.entry.incarnation == incarnation else "unknown"

    def last(self, role: str, index: int, incarnation: int) -> Registration | None:
        """What this incarnation of a worker said last, however long ago."""
        with self._lock:
            row = self._rows.get((role, index))
        return row.entry if row and row.entry.incarnation == incarnation and row.entry.pid else None

    def accounts(self) -> list[bytes]:
        """The last account that each incarnation of each worker has reported, of the dead ones too."""
        with self._lock:
            return list(self._accounts.values())

    def note_account(self, role: str, index: int, incarnation: int, account: bytes) -> None:
        """Keep what was found of the accounting of a dead worker, if anything was."""
        with self._lock:
            self._note_account(role, index, incarnation, account)

    def _note_account(self, role: str, index: int, incarnation: int, account: bytes) -> None:
        if account:
            self._accounts[role, index, incarnation] = account

    @property
    def epoch(self) -> int:
        """Grows with every change of the table or of stop."""
        with self._locked():
            return self._epoch

    def request_stop(self) -> None:
        """Tell everybody to stop, now and from now on."""
        with self._locked():
            self._epoch += not self._stop
            self._stop = True

    def answer(self, renewal: Renewal) -> News:
        """Do what a renewal asks, and say what its sender does not know yet."""
        entry, refused = renewal.entry, None
        try:
            self.renew(entry)
            if renewal.leaving:
                self.withdraw(entry.role, entry.index, entry.incarnation)
        except RefusedError as error:
            refused = str(error)
        news = replace(self.news(renewal.roles, renewal.epoch), refused=refused, farewell=renewal.leaving)
        if not renewal.reports:
            return news
        return replace(news, accounts=self.accounts(), metrics={one.name: one.metrics for one in self.live()})

    def news(self, roles: Collection[str] | None = None, epoch: int = -1) -> News:
        """The present state, with the table of these roles (None: all) unless `epoch` is its number.

        Its number changes only with these roles: a thousand actors that come do not hear of one another.
        """
        with self._locked():
            changes = [self._changes.get(role, self._born) for role in (self._changes if roles is None else roles)]
            newest = max(changes, default=self._born)
            table = (
                None if epoch == newest else [entry for entry in self._live() if roles is None or entry.role in roles]
            )
            return News(newest, self._stop, self.lease_s, self.patience_s, table)

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` after every change of the table or of stop; returns what ends that. It must not block."""
        with self._lock:
            self._watchers.append(watcher)
        return lambda: self._unwatch(watcher)

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def _select(self, state: State, role: str | None = None) -> list[Registration]:
        with self._locked():
            rows = sorted(self._rows.items())
        return [row.entry for _, row in rows if row.state == state and role in (None, row.entry.role)]

    def _live(self) -> list[Registration]:
        return [row.entry for _, row in sorted(self._rows.items()) if row.state == "live"]

    def _touch(self, role: str) -> None:
        self._epoch += 1
        self._changes[role] = self._epoch

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock: leases are looked at when it is taken, and watchers hear of changes after it is given back."""
        watchers = []
        try:
            with self._lock:
                before = self._epoch
                self._expire()
                try:
                    yield
                finally:
                    watchers = list(self._watchers) if self._epoch != before else []
        finally:
            for watcher in watchers:
                watcher()

    def _expire(self) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + self.lease_s / 100  # all rows are looked at, so not for every question
        for key, row in self._rows.items():
            if row.state == "live" and now - row.entry.renewed > self.lease_s:
                self._rows[key] = _Row(row.entry, "expired")
                self._touch(row.entry.role)
