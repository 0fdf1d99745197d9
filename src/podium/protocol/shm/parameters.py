"""Parameters in shared memory: one copy for a host, in several buffers, so that a reader waits for no writer.

 latest     count of the versions published; the newest lies in buffer `latest` % BUFFERS; written last
 wakeup       readers sleep here for the next version
 marks      of each buffer: 2 n when it holds the n-th version, 2 n - 1 while that is written; then its version
 blocks     of each buffer: the arrays

A reader copies the newest buffer and looks at its mark again: the publisher would have to publish BUFFERS - 1 versions
during the copy to disturb it. One that dies in the middle of a copy leaves `latest` at a buffer that is whole.
"""

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from podium.core.errors import RefusedError, StreamError
from podium.protocol.schema import ALIGNMENT, Schema, Version, check_arrays
from podium.protocol.shm.futex import FutexWakeup, order
from podium.protocol.shm.rendezvous import endpoint_of, path_of
from podium.protocol.shm.segment import LINE, FieldText, Segment, attach, create, schema_of, schema_text
from podium.protocol.streams import Counters, ParameterPublisher, ParameterReader

BUFFERS = 4
ATTEMPTS = 100  # of a reader that is disturbed each time; then it has found nothing for now
LATEST, WAKEUP, MARKS = 0, LINE, 2 * LINE
BLOCKS = MARKS + LINE * BUFFERS


class PolicyText(msgspec.Struct, frozen=True):
    """What a policy's file says of itself."""

    policy: str
    schema: tuple[FieldText, ...]


class PolicyArea:
    """A policy's words and blocks, made once."""

    def __init__(self, segment: Segment, schema: Schema) -> None:
        segment.check_size(BLOCKS + BUFFERS * schema.nbytes)
        self.segment = segment
        self.latest = segment.words(LATEST, 1)
        self.wakeup = FutexWakeup(segment.memory, segment.start + WAKEUP, shared=True)
        self.marks = [segment.words(MARKS + LINE * buffer, 3) for buffer in range(BUFFERS)]
        starts = [segment.start + BLOCKS + schema.nbytes * buffer for buffer in range(BUFFERS)]
        self.blocks = [np.frombuffer(segment.memory, np.uint8, schema.nbytes, start) for start in starts]
        self.arrays = [schema.views(segment.memory, start) for start in starts]


class ShmParameterPublisher(ParameterPublisher):
    """The learner's end."""

    def __init__(self, directory: Path, policy: str, schema: Schema) -> None:
        self.counters = Counters()
        self._schema = schema
        self._newest: Version | None = None
        stem = f"policy-{hashlib.blake2b(policy.encode(), digest_size=8).hexdigest()}"  # a name may have any characters
        predecessors = list(directory.glob(f"{stem}-*"))
        path = directory / f"{stem}-{secrets.token_hex(8)}"
        segment = create(path, PolicyText(policy, schema_text(schema)), BLOCKS + BUFFERS * schema.nbytes)
        self._area = PolicyArea(segment, schema)
        self.endpoint = endpoint_of(path)
        for old in predecessors:  # of publishers that were killed: whoever reads them has them mapped
            old.unlink(missing_ok=True)

    def publish(self, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Copy into the buffer that has been the newest longest ago. Raises ValueError unless the version is newer."""
        check_arrays(self._schema, arrays)
        if self._newest is not None and version <= self._newest:
            raise ValueError(f"version {tuple(version)} is not newer than {tuple(self._newest)}")
        area = self._area
        count = area.latest[0] + 1
        marks = area.marks[count % BUFFERS]
        marks[0] = 2 * count - 1
        order()
        for target, array in zip(area.arrays[count % BUFFERS], arrays, strict=True):
            target[...] = array
        marks[1], marks[2] = version
        order()
        marks[0] = 2 * count
        order()
        area.latest[0] = count
        area.wakeup.wake()
        self._newest = version
        self.counters.sent += 1

    def close(self) -> None:
        """Leave: readers keep what they have mapped, new ones find nothing."""
        self._area.segment.unlink()


class ShmParameterReader(ParameterReader):
    """Anybody's end: two blocks of its own in turn, so that the last version read stays while the next is copied."""

    def __init__(self, endpoint: str, schema: Schema) -> None:
        self.counters = Counters()
        self._schema = schema
        self._version: Version | None = None
        self._own = [own_block(schema) for _ in range(2)]
        self._bind(endpoint)

    def _bind(self, endpoint: str) -> None:
        path = path_of(endpoint)
        try:
            segment = attach(path)
        except FileNotFoundError:
            raise StreamError(f"no parameters at {endpoint}: their publisher has gone") from None
        text = segment.describe(PolicyText)
        if difference := schema_of(text.schema).difference(self._schema):
            raise RefusedError(f"policy {text.policy!r} has another schema: {difference}")
        self._area = PolicyArea(segment, self._schema)
        self._latest = self._area.latest
        self._seen = 0

    def read(self, timeout: float = 0.0) -> tuple[Version, list[np.ndarray]] | None:
        """The newest version, copied in one piece."""
        if timeout <= 0.0:
            return None if self._latest[0] == self._seen else self._copy_newest()
        return self._area.wakeup.wait(self._look, timeout)

    def _look(self) -> tuple[Version, list[np.ndarray]] | None:
        return None if self._latest[0] == self._seen else self._copy_newest()

    def _copy_newest(self) -> tuple[Version, list[np.ndarray]] | None:
        """Copy; once more with what is newest by then if the publisher has come round to that buffer meanwhile."""
        area, (block, arrays) = self._area, self._own[0]
        for _ in range(ATTEMPTS):
            count = self._latest[0]
            order()
            marks = area.marks[count % BUFFERS]
            version = Version(marks[1], marks[2])
            fresh = self._version is None or version > self._version
            if fresh:
                np.copyto(block, area.blocks[count % BUFFERS])
            order()
            if marks[0] == 2 * count:
                self._seen = count
                return self._turn_to(version, arrays) if fresh else None
        return None

    def _turn_to(self, version: Version, arrays: list[np.ndarray]) -> tuple[Version, list[np.ndarray]]:
        """What was copied is what we have read; the other block is for the next copy."""
        self._own.reverse()
        self._version = version
        self.counters.received += 1
        return version, list(arrays)

    def rebind(self, endpoint: str) -> None:
        """Go on at another publisher; at the same one nothing changes."""
        if path_of(endpoint) != self._area.segment.path:
            self._bind(endpoint)

    def close(self) -> None:
        """Nothing to give back: the memory is unmapped when this object goes."""


def own_block(schema: Schema) -> tuple[np.ndarray, list[np.ndarray]]:
    """Memory of this process, and the schema's arrays over it, aligned."""
    memory = np.zeros(schema.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + schema.nbytes], schema.views(memory, start)
