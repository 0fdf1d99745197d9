"""Files of shared memory: whole from the moment they have a name, with a description of what is in them.

A segment is magic, length of the description, description (JSON), padding, and then what the description says.
The mapping is never closed by hand: arrays over it may still be in use (by jit, by a caller), and Python unmaps the
memory when the last of them is gone. Unlinking the file frees its name at once.
"""

import errno
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from podium.core.errors import MalformedSegmentError, StreamError
from podium.protocol.schema import ALIGNMENT, Field, Schema

MAGIC = b"podium\x00\x01"
LINE = ALIGNMENT  # a cache line: words that different processes write lie apart
Description = TypeVar("Description", bound=msgspec.Struct)


Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class FieldText(msgspec.Struct, frozen=True):
    """A field as it stands in a description."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    stack: Size


def schema_text(schema: Schema) -> tuple[FieldText, ...]:
    """A schema for a description."""
    return tuple(FieldText(field.name, field.shape, field.dtype, field.stack) for field in schema.fields)


def schema_of(text: tuple[FieldText, ...]) -> Schema:
    """The schema that `schema_text` described."""
    for field in text:
        try:
            shareable = not np.dtype(field.dtype).hasobject
        except TypeError:
            shareable = False
        if not shareable:
            raise MalformedSegmentError(f"{field.name} has no dtype that can be shared: {field.dtype!r}")
    return Schema(tuple(Field(field.name, field.shape, field.dtype, field.stack) for field in text))


def aligned(nbytes: int) -> int:
    """Rounded up to a cache line."""
    return -(-nbytes // LINE) * LINE


class Segment:
    """A mapped file; `start` is where the content begins, after the description."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self.memory = memory
        length = int.from_bytes(memory[8:16], "little")
        if memory[:8] != MAGIC or length > len(memory) - 16:
            raise MalformedSegmentError(f"{path} is no segment of this version of Podium")
        self.text = memory[16 : 16 + length]
        self.start = aligned(16 + length)

    def describe(self, kind: type[Description]) -> Description:
        """The description, checked."""
        try:
            return msgspec.json.decode(self.text, type=kind)
        except msgspec.DecodeError as error:
            raise MalformedSegmentError(f"{self.path} has no {kind.__name__}: {error}") from None

    def words(self, offset: int, count: int) -> memoryview:
        """`count` words of 64 bits from an offset into the content: each is read and written at once."""
        begin = self.start + offset
        return memoryview(self.memory)[begin : begin + 8 * count].cast("q")

    def check_size(self, nbytes: int) -> None:
        """Raise unless there are so many bytes of content: an access beyond would kill the process."""
        if len(self.memory) < self.start + nbytes:
            raise MalformedSegmentError(f"{self.path} has {len(self.memory)} bytes, not {self.start + nbytes}")

    def unlink(self) -> None:
        """Take the file's name away; whoever has it mapped keeps the memory."""
        self.path.unlink(missing_ok=True)


def create(
    path: Path, description: msgspec.Struct, nbytes: int, begin: Callable[[Segment], None] | None = None
) -> Segment:
    """A new zeroed segment with room for `nbytes` of content. Raises FileExistsError if there is one of this name.

    `begin` writes into it before others can see it.
    """
    text = msgspec.json.encode(description)
    size = aligned(16 + len(text)) + nbytes
    hidden = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        reserve(descriptor, hidden.parent, size)
        memory = mmap.mmap(descriptor, size)
        memory[: 16 + len(text)] = MAGIC + len(text).to_bytes(8, "little") + text
        segment = Segment(path, memory)
        if begin is not None:
            begin(segment)
        os.link(hidden, path)  # unlike a rename, never in place of somebody else's
        return segment
    finally:
        os.close(descriptor)
        hidden.unlink()


def reserve(descriptor: int, directory: Path, size: int) -> None:
    """Take the memory now: a page that is missing later would be a SIGBUS in the middle of a copy."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        room = os.statvfs(directory)
        needs, has = size / 2**20, room.f_bavail * room.f_frsize / 2**20
        raise StreamError(f"no room in {directory}: needs {needs:.1f} MB, has {has:.1f}") from None


def attach(path: Path) -> Segment:
    """The segment of this name. Raises FileNotFoundError if there is none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size < 16:
            raise MalformedSegmentError(f"{path} has {size} bytes: no segment")
        return Segment(path, mmap.mmap(descriptor, size))
    finally:
        os.close(descriptor)


def attach_or_create(path: Path, description: msgspec.Struct, nbytes: int) -> Segment:
    """The segment of this name, made by whoever comes first."""
    try:
        return attach(path)
    except FileNotFoundError:
        pass
    try:
        return create(path, description, nbytes)
    except FileExistsError:
        return attach(path)
