"""Merged requests: arrays padded to a power of two, used again once they were answered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from podium.core.padding import padded_size
from podium.protocol.schema import Field, Schema, describe
from podium.protocol.streams import RequestBatch


def batched(schema: Schema, rows: int) -> Schema:
    """The schema of so many rows, given that of one."""
    return Schema(tuple(Field(field.name, (rows, *field.shape), field.dtype) for field in schema.fields))


class PaddedArrays:
    """Arrays with room for `capacity` rows, and their beginnings of each power of two."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self.capacity = capacity
        self.arrays = batched(schema, capacity).allocate()
        self._beginnings: dict[int, list[np.ndarray]] = {}

    def filled(self, rows: int) -> list[np.ndarray]:
        """The arrays up to the padding of so many rows, which is zeroed."""
        padded = padded_size(rows)
        arrays = self._beginnings.get(padded)
        if arrays is None:
            arrays = self._beginnings[padded] = [array[:padded] for array in self.arrays]
        if rows < padded:
            for array in arrays:
                array[rows:] = 0
        return arrays


@dataclass
class PooledBatch(RequestBatch):
    """A batch whose arrays go back to the pool when it is answered: until then they are nobody else's."""

    block: PaddedArrays | None = None


class BatchPool:
    """As many blocks as batches were out at once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._free: list[PaddedArrays] = []

    def take(self, rows: int) -> PaddedArrays:
        """A block with room for so many rows; smaller ones are forgotten."""
        while self._free:
            if (block := self._free.pop()).capacity >= rows:
                return block
        return PaddedArrays(self._schema, padded_size(rows))

    def give(self, block: PaddedArrays) -> None:
        """Back, to be filled again."""
        self._free.append(block)

    def give_back(self, batch: RequestBatch) -> None:
        """The arrays of an answered batch, once."""
        if isinstance(batch, PooledBatch) and batch.block is not None:
            self._free.append(batch.block)
            batch.block = None


def check_outputs(schema: Schema, rows: int, arrays: Sequence[np.ndarray]) -> None:
    """Raise ValueError unless there are at least so many rows of what the schema says."""
    if len(arrays) != len(schema.fields):
        raise ValueError(f"{len(arrays)} arrays, the reply has {len(schema.fields)}")
    for field, array in zip(schema.fields, arrays, strict=True):
        if array.shape[1:] != field.shape or array.dtype != field.dtype or len(array) < rows:
            raise ValueError(f"{rows} rows of {describe(field)}: got {array.dtype}{list(array.shape)}")
