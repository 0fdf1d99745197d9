"""One copy of a policy for each host: eight readers on a host cost an eighth of the bytes, and a quarter of the time.

One reader fetches each version; the others on this host read its copy in shared memory. (1.7 M parameters and eight
readers: 42 ms a version instead of 153, 11 ms of the publisher's core instead of 81; `benchmarks/JOURNAL.md`.)

A lock on a file in the run's directory decides which reader fetches. The kernel takes it from the dead: another reader
then finds it free, and goes on. A reader has its own connection to the publisher in any case. It is idle unless this
reader fetches for all, or the one that does has not been heard of for long: then each reader fetches for itself.

 relay-KEY.lock      held by the reader that fetches from this publisher
 relay-KEY           says where its copy is; touched again and again, so that others see that it is alive
"""

import fcntl
import hashlib
import logging
import os
import threading
import time
import weakref
from pathlib import Path

from podium.core.errors import StreamError
from podium.core.files import write_whole
from podium.protocol.schema import Schema, Version
from podium.protocol.shm.parameters import ShmParameterPublisher, ShmParameterReader
from podium.protocol.streams import Counters, ParameterReader
from podium.protocol.tcp.parameters import News, TcpParameterReader

logger = logging.getLogger(__name__)

BEAT = 0.1  # seconds between two heartbeat
LOOK = 0.2  # seconds between two looks at who fetches
SILENCE = 2.0  # seconds without a heartbeat after which a reader fetches for itself


class Sign:
    """The two files by which the readers of a publisher agree on who fetches."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        key = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest()
        self.directory, self.endpoint = directory, endpoint
        self._place, self._lock = directory / f"relay-{key}", directory / f"relay-{key}.lock"

    def claim(self) -> int | None:
        """The lock, as a descriptor to be closed in the end; None if another reader has it, or the run has ended."""
        try:
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def put(self, copy: str) -> None:
        """Say where the copy is, at once and in whole."""
        write_whole(self._place, copy)

    def touch(self) -> None:
        """A heartbeat. Raises FileNotFoundError once the run has ended."""
        os.utime(self._place)

    def look(self) -> tuple[str, int] | None:
        """Where the copy is, and a number that each heartbeat changes."""
        try:
            return self._place.read_text(), self._place.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def take_down(self) -> None:
        """There is no copy any more."""
        self._place.unlink(missing_ok=True)


class Relay:
    """Fetches for the whole host in a thread of its own, because its process may be busy for long."""

    def __init__(self, far: TcpParameterReader, sign: Sign, lock: int, schema: Schema) -> None:
        self._far, self._sign, self._lock = far, sign, lock
        self._near = ShmParameterPublisher(sign.directory, f"relay {sign.endpoint}", schema)
        self.endpoint = self._near.endpoint
        self._leaving = threading.Event()
        sign.put(self.endpoint)
        far.restart()  # readers that come later want what we may have read already
        self._thread = threading.Thread(target=self._run, name=f"podium relay {sign.endpoint}", daemon=True)
        self._thread.start()

    @property
    def working(self) -> bool:
        """False once it has met an error: the reader's own connection will meet it again, and tell."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                if (news := self._far.read(BEAT)) is not None:
                    self._near.publish(*news)
                self._sign.touch()
        except (StreamError, FileNotFoundError) as error:
            logger.info("relay of %s ends: %s", self._sign.endpoint, error)
        finally:
            self._sign.take_down()
            self._near.close()
            os.close(self._lock)

    def close(self) -> None:
        """Leave it to another reader. Twice is harmless."""
        self._leaving.set()
        self._thread.join()


class SharedParameterReader(ParameterReader):
    """A reader of the host's copy, which perhaps keeps it up to date."""

    def __init__(self, far: TcpParameterReader, directory: Path, endpoint: str, schema: Schema) -> None:
        self.counters = Counters()
        self._far, self._schema, self._directory = far, schema, directory
        self._version: Version | None = None
        self._settle(endpoint)

    def _settle(self, endpoint: str) -> None:
        self._sign = Sign(self._directory, endpoint)
        self._relay: Relay | None = None
        self._may_relay = True
        self._near: ShmParameterReader | None = None
        self._place = ""  # of `_near`
        self._alive = 0, 0.0  # the last heartbeat, and when it was new
        self._look(time.monotonic())

    def read(self, timeout: float = 0.0) -> News | None:
        end = 0.0
        while True:
            now = time.monotonic()
            if now >= self._due:
                self._look(now)
            end = end or now + timeout
            news = (self._near or self._far).read(max(0.0, min(end, self._due) - now))
            if news is not None and (self._version is None or news[0] > self._version):
                self._version = news[0]
                self.counters.received += 1
                return news
            if timeout <= 0.0 or time.monotonic() >= end:
                return None

    def _look(self, now: float) -> None:
        """Fetch for all if nobody does; else see where the copy is, and whether it is kept up to date."""
        self._due = now + LOOK
        if self._relay is not None:
            if not self._relay.working:
                self._stop_relaying()
                self._may_relay = False
        elif self._may_relay and (lock := self._sign.claim()) is not None:
            self._start_relaying(lock)
        else:
            self._follow(now)

    def _start_relaying(self, lock: int) -> None:
        try:
            self._relay = Relay(self._far, self._sign, lock, self._schema)
        except StreamError as error:
            os.close(lock)
            self._near, self._place, self._may_relay = None, "", False
            logger.warning("parameters are not shared on this host: %s", error)
            return
        self._end_relaying = weakref.finalize(self, self._relay.close)  # also if nobody closes this reader
        self._near = ShmParameterReader(self._relay.endpoint, self._schema)

    def _stop_relaying(self) -> None:
        if self._relay is not None:
            self._end_relaying()
            self._relay, self._near, self._place = None, None, ""

    def _follow(self, now: float) -> None:
        found = self._sign.look()
        if found is None:
            self._near, self._place = None, ""
            return
        place, beats = found
        if beats != self._alive[0]:
            self._alive = beats, now
        if now - self._alive[1] > SILENCE:
            self._near, self._place = None, ""
        elif place != self._place:
            try:
                self._near, self._place = ShmParameterReader(place, self._schema), place
            except StreamError:  # it went while we looked: there will be another
                self._near, self._place = None, ""

    def rebind(self, endpoint: str) -> None:
        self._stop_relaying()
        self._far.rebind(endpoint)
        self._settle(endpoint)

    def close(self) -> None:
        self._stop_relaying()
        self._far.close()
