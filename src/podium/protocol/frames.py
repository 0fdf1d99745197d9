"""Stacked frames, each sent once: a quarter of the bytes of Pong's fragments over TCP, and 1.5 times their rate.

`obs[t]` repeats all frames of `obs[t-1]` but its oldest. (32 steps of 16 environments: 3.7 MB instead of 14.9, 45 a
second instead of 30, encrypted, on two cores; `benchmarks/JOURNAL.md`.)

An array is [T, B, ..., stack * c]: T steps of B rows, whose last axis holds `stack` frames of c channels, oldest first.
Its encoding is lossless whatever the array holds, because the repetition is looked for and not assumed:

 1 bit for each [T, B]     1: this stack does not continue the one before (first step, start of an episode)
 [T, B, ..., c]            the newest frame of every stack
 [n, ..., (stack-1) * c]   the older frames of the n stacks whose bit is 1
"""

import sys
from typing import NamedTuple

import numpy as np

from podium.core.errors import MalformedError
from podium.protocol.schema import Field, describe

_WORDS = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


class _Form(NamedTuple):
    """An array as [T, B, P pixels, bytes of a stack], of which the last `newest` bytes are the newest frame."""

    T: int
    B: int
    P: int
    whole: int
    newest: int

    @property
    def mask(self) -> int:
        return -(-self.T * self.B // 8)

    @property
    def word(self) -> np.dtype | None:
        """A stack of these sizes is one integer, and a shift of it moves all frames at once."""
        return _WORDS.get(self.whole) if sys.byteorder == "little" else None


def _form(shape: tuple[int, ...], itemsize: int, stack: int) -> _Form:
    last = shape[-1] if shape else 0
    if not shape or stack < 1 or last % stack:
        raise ValueError(f"stack: {stack}, must divide the last axis of {list(shape)}")
    T, B = (*shape[:-1], 1, 1)[:2]
    P = int(np.prod(shape[2:-1], dtype=np.int64))
    return _Form(T, B, P, last * itemsize, last // stack * itemsize)


def largest_encoding(field: Field) -> int:
    """Bytes that no encoding of this field exceeds: those of the array, and a bit for each stack.

    >>> largest_encoding(Field("obs", (20, 8, 84, 84, 4), "uint8", stack=4)) - 20 * 8 * 84 * 84 * 4
    20
    """
    return field.nbytes + _form(field.shape, np.dtype(field.dtype).itemsize, field.stack).mask


def encode_frames(array: np.ndarray, stack: int) -> bytes:
    """The bytes of an array of stacked frames.

    >>> len(encode_frames(np.zeros((20, 8, 84, 84, 4), np.uint8), stack=4)) / (20 * 8 * 84 * 84 * 4)  # of 1/4
    0.28750442...
    """
    form = _form(array.shape, array.itemsize, stack)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(form[:4])
    starts = _starts(data, form)
    older = data[starts][..., : -form.newest] if form.newest else data[:0]
    newest = data[..., -form.newest :] if form.newest else data[..., :0]
    return b"".join((np.packbits(starts).data, newest.tobytes(), older.tobytes()))


def _starts(data: np.ndarray, form: _Form) -> np.ndarray:
    """Where [T, B] a stack does not continue the one before, compared bit by bit: -0.0 is not 0.0 here."""
    starts = np.ones((form.T, form.B), bool)
    if form.T < 2 or not data.size:
        return starts
    if form.word is not None:
        stacks = data.view(form.word)[..., 0]
        shift = form.word.type(8 * form.newest)
        kept = form.word.type((1 << 8 * (form.whole - form.newest)) - 1)
        for t in range(1, form.T):  # step by step, it stays in the cache
            starts[t] = ((stacks[t] & kept) != (stacks[t - 1] >> shift)).any(-1)
    else:
        for t in range(1, form.T):
            starts[t] = (data[t, ..., : -form.newest] != data[t - 1, ..., form.newest :]).any((-2, -1))
    return starts


def decode_frames(encoded: bytes | memoryview, field: Field) -> np.ndarray:
    """The array of a field from its encoding; MalformedError if it is none."""
    dtype = np.dtype(field.dtype)
    form = _form(field.shape, dtype.itemsize, field.stack)
    data = np.frombuffer(encoded, np.uint8)
    frames = form.T * form.B * form.P * form.newest
    if data.size < form.mask + frames:
        raise MalformedError(f"{describe(field)} in {data.size} bytes")
    starts = np.unpackbits(data[: form.mask], count=form.T * form.B).astype(bool).reshape(form.T, form.B)
    older = data[form.mask + frames :]
    if older.size != int(starts.sum()) * form.P * (form.whole - form.newest) or not starts[:1].all():
        raise MalformedError(f"{describe(field)} in {data.size} bytes")
    stacks = np.empty(form[:4], np.uint8)
    if stacks.size:
        newest = data[form.mask :][:frames].reshape(form.T, form.B, form.P, form.newest)
        _restack(stacks, starts, newest, older.reshape(-1, form.P, form.whole - form.newest), form)
    return stacks.reshape(-1).view(dtype).reshape(field.shape)


def _restack(stacks: np.ndarray, starts: np.ndarray, newest: np.ndarray, older: np.ndarray, form: _Form) -> None:
    """Step by step: shift the stack before, or take the older frames as they were sent; then add the newest."""
    used = 0
    for t in range(form.T):
        if t and form.word is not None:
            shifted = stacks[t].view(form.word)
            np.right_shift(stacks[t - 1].view(form.word), form.word.type(8 * form.newest), out=shifted)
        elif t:
            stacks[t, ..., : -form.newest] = stacks[t - 1, ..., form.newest :]
        if count := int(starts[t].sum()):
            stacks[t, starts[t], :, : -form.newest] = older[used : used + count]
            used += count
        stacks[t, ..., -form.newest :] = newest[t]
