"""A worker's membership in the directory: it renews its lease in the background, and knows where the others are."""

import os
import socket as sockets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Self

from podium.core.errors import DirectoryError
from podium.protocol.directory import LEASE_S, RENEWALS, Directory, News, Registration, Renewal
from podium.protocol.directory_link import DirectoryLink, LocalLink, SocketLink
from podium.protocol.run_keys import RunKeys

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOIN_S = 0.05  # between two attempts to register
LOOK_S = 0.1  # between two looks at `stop`
FAREWELL_S = 1.0  # to wait for the answer to the last renewal


def host_identity() -> str:
    """Equal in two processes exactly if they share memory: the host's name, and (on Linux) which boot of it."""
    boot = BOOT_ID.read_text().strip()[:8] if BOOT_ID.exists() else ""
    return "-".join(part for part in (sockets.gethostname(), boot) if part)


class Membership:
    """A worker among the others.

    with connect(endpoint, keys, "actor", 3, incarnation=0) as membership:
        membership.announce({})                                # ready; with endpoints where there are some
        learner = membership.wait_for("learner", 1, timeout=0.5)
        while not membership.stop.is_set():
            ...
            membership.progress += 1                           # what it renews its lease with
            membership.metrics = {"steps_per_s": 1234.0}       # replaced, never changed in place

    `stop` is set when the directory says so, when it refuses this incarnation (`refused` says why), and when it has
    been silent for longer than it said (`lost`; two leases, unless it was told otherwise). With `roles`, only workers
    of these can be looked up, and news of others cost nothing; else all.
    """

    def __init__(
        self,
        link: DirectoryLink,
        entry: Registration,
        roles: Collection[str] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._link = link
        self._entry = entry
        self._roles = None if roles is None else sorted(roles)
        self.stop = stop or threading.Event()
        self.lost = False
        self.refused: str | None = None
        self._progress = 0
        self._metrics: dict[str, float] = {}
        self.report_account: Callable[[], bytes] = bytes  # called for each renewal, by the thread that renews
        self.accounts: list[bytes] | None = None  # of all workers as last reported; None until they are asked for
        self.worker_metrics: dict[str, dict[str, float]] = {}  # of all workers, once accounts are asked for
        self._wants_reports = False
        self._endpoints: dict[str, str] | None = None
        self._table: list[Registration] = []
        self._epoch = -1
        self._lease_s, self._patience_s = LEASE_S, 2 * LEASE_S
        self._joined = self._leaving = self._urgent = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"lease of {entry.name}", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> int:
        """Fragments, replies or updates so far: whatever shows that the worker gets on."""
        return self._progress

    @progress.setter
    def progress(self, value: int) -> None:
        self._progress = int(value)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics for whoever looks at the run."""
        return self._metrics

    @metrics.setter
    def metrics(self, values: dict[str, float]) -> None:
        self._metrics = {str(name): float(value) for name, value in values.items()}

    def join(self, timeout: float) -> Self:
        """Wait until the directory has taken us; raises DirectoryError if it refuses, or says nothing."""
        self._wait(lambda: self._joined or self.refused, timeout)
        if self.refused:
            raise DirectoryError(f"the directory refuses {self.refused}")
        if not self._joined and not self.stop.is_set():
            raise DirectoryError(f"{self._entry.name}: the directory did not answer for {timeout:g} s")
        return self

    def announce(self, endpoints: dict[str, str]) -> None:
        """Tell everybody where this worker's streams are, and so that it is ready."""
        self._endpoints = dict(endpoints)
        self._urgent = True
        self._link.wake()

    def entries(self, role: str) -> list[Registration]:
        """Live workers of a role, by index. Costs nothing; their progress is as old as the last change of the table."""
        if self._roles is not None and role not in self._roles:
            raise ValueError(f"{self._entry.role} has no edge to {role!r}, so it does not know where that is")
        return [entry for entry in self._table if entry.role == role]

    def wait_for(self, role: str, count: int, timeout: float) -> list[Registration]:
        """At least `count` workers of a role that have announced themselves; none if time is up, or on stop."""

        def ready() -> list[Registration]:
            return [entry for entry in self.entries(role) if entry.ready]

        self._wait(lambda: len(ready()) >= count, timeout)
        return found if len(found := ready()) >= count else []

    def fetch_accounts(self, timeout: float) -> list[bytes]:
        """What all workers have reported of their accounting.

        From now on `accounts` and `worker_metrics` are kept up to date.

        Raises DirectoryError if the directory does not answer within `timeout` seconds.
        """
        self._wants_reports = self._urgent = True
        self._link.wake()
        self._wait(lambda: self.accounts is not None, timeout)
        if self.accounts is None:
            raise DirectoryError(f"{self._entry.name}: the directory did not tell the accounts for {timeout:g} s")
        return self.accounts

    def close(self) -> None:
        """Withdraw, with a last word on progress. Twice is harmless."""
        self._leaving = True
        if self._thread.is_alive():
            self._link.wake()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, true: Callable[[], object], timeout: float) -> None:
        """Until it is true, time is up, or `stop` is set, which others may do without a word: so look now and then."""
        end = time.monotonic() + timeout
        with self._changed:
            while not true() and not self.stop.is_set() and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, LOOK_S))

    def _renewal(self) -> Renewal:
        entry = replace(
            self._entry,
            endpoints=self._endpoints or {},
            ready=self._endpoints is not None,
            progress=self._progress,
            metrics=self._metrics,
            account=self.report_account(),
        )
        return Renewal(entry, self._roles, self._epoch, self._leaving, self._wants_reports)

    def _run(self) -> None:
        try:
            due, silent_s = 0.0, 0.0
            while not self._leaving and not self.refused:
                period = self._lease_s / RENEWALS if self._joined else JOIN_S
                if (now := time.monotonic()) >= due or self._urgent:
                    self._urgent = False
                    self._link.send(self._renewal())
                    due = now + period
                news = self._link.receive(max(0.0, due - time.monotonic()))
                # Only time that was spent waiting counts: if this process was stopped, the directory is not to blame.
                silent_s = 0.0 if news else silent_s + min(time.monotonic() - now, period)
                if news:
                    self._take(news)
                elif silent_s > self._patience_s:
                    self.lost = True
                    self._halt()
            self._leave()
        finally:
            self._link.close()

    def _take(self, news: News) -> None:
        with self._changed:
            self._lease_s, self._patience_s = news.lease_s, news.patience_s
            self.refused = news.refused or self.refused
            self._joined = self._joined or not news.refused
            if news.table is not None:
                self._table, self._epoch = news.table, news.epoch
            if news.accounts is not None:
                self.accounts, self.worker_metrics = news.accounts, news.metrics or {}
            self._changed.notify_all()
        if news.stop or news.refused:
            self._halt()

    def _halt(self) -> None:
        with self._changed:
            self.stop.set()
            self._changed.notify_all()

    def _leave(self) -> None:
        """Say good-bye and wait a moment for the answer: what is said last is what accounting and supervision go by."""
        if self.refused or self.lost or not self._joined:
            return
        self._link.send(self._renewal())
        end = time.monotonic() + FAREWELL_S
        while (left := end - time.monotonic()) > 0:
            if (news := self._link.receive(left)) and news.farewell:
                return


def connect(
    endpoint: str,
    keys: RunKeys,
    role: str,
    index: int,
    incarnation: int,
    *,
    host: str | None = None,
    roles: Collection[str] | None = None,
    stop: threading.Event | None = None,
    timeout: float = 30.0,
) -> Membership:
    """Join the directory whose server is at `endpoint`."""
    entry = Registration(role, index, incarnation, host or host_identity(), os.getpid())
    return _joined(Membership(SocketLink(endpoint, keys), entry, roles, stop), timeout)


def attach(
    directory: Directory,
    role: str,
    index: int,
    incarnation: int,
    *,
    host: str | None = None,
    roles: Collection[str] | None = None,
    stop: threading.Event | None = None,
    timeout: float = 30.0,
) -> Membership:
    """Join a directory in the same process."""
    entry = Registration(role, index, incarnation, host or host_identity(), os.getpid())
    return _joined(Membership(LocalLink(directory), entry, roles, stop), timeout)


def _joined(membership: Membership, timeout: float) -> Membership:
    try:
        return membership.join(timeout)
    except DirectoryError:
        membership.close()
        raise
