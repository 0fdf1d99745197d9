"""What travels: named arrays of fixed shape and dtype, and who sent them. No jax: arrays are opaque here."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64  # XLA reads arrays in place if they lie on its alignment; it is a cache line, too


class Version(NamedTuple):
    """Of a policy, compared in this order: a learner restored from a checkpoint is newer than its dead predecessor."""

    incarnation: int
    update: int


class SenderId(NamedTuple):
    """Who sends: `SenderId(2, 5)` is the sixth incarnation of actor 2. A newer incarnation replaces an older one."""

    worker: int
    incarnation: int


@dataclasses.dataclass(frozen=True)
class Field:
    """One array: `Field("obs", (129, 16, 17), "float32")`.

    `stack` > 1 says that the last axis holds so many frames, of which each step repeats all but the newest:
    a transport between hosts sends them once. Along `rows_axis` the rows of several arrays are put side by side.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stack: int = 1
    rows_axis: int = dataclasses.field(default=0, compare=False)  # not sent: each end knows it

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Schema:
    """The arrays of one record, in order. Both ends of a stream have the same one, or do not connect.

    >>> schema = Schema((Field("obs", (2, 3), "float32"), Field("reward", (2,), "float32")))
    >>> schema.offsets, schema.nbytes
    ((0, 64), 128)
    """

    fields: tuple[Field, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each array begins in a block of `nbytes` bytes, aligned."""
        starts, used = [], 0
        for field in self.fields:
            starts.append(used)
            used += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        return tuple(starts)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a block that holds one record."""
        if not self.fields:
            return 0
        return self.offsets[-1] + -(-self.fields[-1].nbytes // ALIGNMENT) * ALIGNMENT

    def views(self, block: Any, offset: int = 0) -> list[np.ndarray]:
        """Arrays over a block of bytes (a bytearray, an mmap), without a copy."""
        return [
            np.frombuffer(block, field.dtype, int(np.prod(field.shape, dtype=np.int64)), offset + start).reshape(
                field.shape
            )
            for field, start in zip(self.fields, self.offsets, strict=True)
        ]

    def allocate(self) -> list[np.ndarray]:
        """Zeroed arrays of a process's own, aligned as in a block."""
        block = np.zeros(self.nbytes + ALIGNMENT, np.uint8)
        return self.views(block, -block.ctypes.data % ALIGNMENT)

    def difference(self, other: "Schema") -> str | None:
        """One line that says in what the two differ; None if they do not."""
        if len(self.fields) != len(other.fields):
            return f"{len(self.fields)} arrays against {len(other.fields)}"
        for mine, theirs in zip(self.fields, other.fields, strict=True):
            if mine != theirs:
                return f"{describe(mine)} against {describe(theirs)}"
        return None


def describe(field: Field) -> str:
    """`obs float32[129, 16, 17]`."""
    return f"{field.name} {field.dtype}{list(field.shape)}"


def check_arrays(schema: Schema, arrays: Sequence[np.ndarray]) -> None:
    """Raise ValueError unless the arrays are what the schema says: a bug of the caller, never of a peer."""
    if len(arrays) != len(schema.fields):
        raise ValueError(f"{len(arrays)} arrays, the schema has {len(schema.fields)}")
    for field, array in zip(schema.fields, arrays, strict=True):
        if array.shape != field.shape or array.dtype != np.dtype(field.dtype):
            raise ValueError(f"{describe(field)}: got {array.dtype}{list(array.shape)}")
