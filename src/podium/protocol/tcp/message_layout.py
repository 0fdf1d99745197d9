"""Where the arrays of fragments, requests and replies are in their messages."""

from collections.abc import Iterator, Sequence

import numpy as np

from podium.protocol.frames import decode_frames, encode_frames, largest_encoding
from podium.protocol.schema import ALIGNMENT, Schema
from podium.protocol.tcp.sockets import Part
from podium.protocol.tcp.wire import HELLO, WORDS


class FragmentLayout:
    """Where the arrays of a schema are in a message: plain ones side by side in one block, stacked frames apart."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.plain = Schema(tuple(f for f in schema.fields if f.stack == 1))
        self.stacked = [f for f in schema.fields if f.stack > 1]
        self._views = [
            (f.shape, np.dtype(f.dtype), start) for f, start in zip(self.plain.fields, self.plain.offsets, strict=True)
        ]
        self.largest = max(HELLO, self.plain.nbytes + WORDS, *(largest_encoding(f) for f in self.stacked), 0)

    def allocate(self) -> tuple[memoryview, list[np.ndarray]]:
        """Memory of a message's first part, words included, and the arrays: in it, or their own."""
        memory = np.zeros(self.plain.nbytes + WORDS + ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % ALIGNMENT :][: self.plain.nbytes + WORDS]
        plain, stacked = self.views(memory), [np.zeros(f.shape, f.dtype) for f in self.stacked]
        return memory.data, self.ordered(plain, stacked)

    def views(self, block: Part | np.ndarray) -> list[np.ndarray]:
        """The plain arrays of a block."""
        return [np.ndarray(shape, dtype, block, start) for shape, dtype, start in self._views]

    def ordered(self, plain: Sequence[np.ndarray], stacked: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All arrays in the schema's order."""
        if not self.stacked:
            return list(plain)
        ones, others = iter(plain), iter(stacked)
        return [next(ones if f.stack == 1 else others) for f in self.schema.fields]

    def frames(self, arrays: Sequence[np.ndarray]) -> list[bytes]:
        """The further parts of a message."""
        pairs = zip(self.schema.fields, arrays, strict=True)
        return [encode_frames(array, f.stack) for f, array in pairs if f.stack > 1]

    def arrays(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """All arrays of a fragment. Raises MalformedError if a further part is not an encoding."""
        stacked = [decode_frames(part, f) for part, f in zip(parts[1:], self.stacked, strict=True)]
        return self.ordered(self.views(parts[0]), stacked)


class RowLayout:
    """Rows of a schema as bytes: field after field, without gaps, because the other end copies them anyway."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [(field.shape, np.dtype(field.dtype), field.nbytes) for field in schema.fields]
        self.nbytes = sum(field.nbytes for field in schema.fields)

    def views(self, block: Part, rows: int) -> Iterator[np.ndarray]:
        """Arrays over the bytes of so many rows."""
        start = 0
        for shape, dtype, size in self._fields:
            yield np.ndarray((rows, *shape), dtype, block, start)
            start += rows * size
