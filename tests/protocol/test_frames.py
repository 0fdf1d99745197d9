"""Stacked frames: what is decoded is what was encoded, bit by bit, and repetition is sent once."""

import numpy as np
import pytest

from podium.core.errors import MalformedError
from podium.protocol.frames import decode_frames, encode_frames, largest_encoding
from podium.protocol.schema import Field

KINDS = [("uint8", 1), ("uint8", 3), ("uint16", 1), ("float32", 1), ("float32", 2), ("float64", 1), ("complex128", 1)]


def stacked(random: np.random.Generator, T: int, B: int, pixels: tuple[int, ...], stack: int, c: int, dtype: str, end):
    """Frames as an environment stacks them: an episode that starts repeats its first frame."""
    obs = np.zeros((T, B, *pixels, stack * c), dtype)
    last = random.integers(0, 255, (B, *pixels, stack * c)).astype(dtype)
    for t in range(T):
        frame = random.integers(0, 255, (B, *pixels, c)).astype(dtype)
        starts = random.random(B) < end
        last = np.concatenate([last[..., c:], frame], -1)
        last[starts] = np.concatenate([frame] * stack, -1)[starts]
        obs[t] = last
    return obs


def restored(obs: np.ndarray, stack: int) -> tuple[np.ndarray, int]:
    encoded = encode_frames(obs, stack)
    field = Field("obs", obs.shape, str(obs.dtype), stack)
    assert len(encoded) <= largest_encoding(field)
    return decode_frames(encoded, field), len(encoded)


def identical(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize(("dtype", "c"), KINDS)
@pytest.mark.parametrize("stack", [2, 3, 4, 8])
def test_random_episodes_come_back_bit_by_bit(dtype, c, stack):
    random = np.random.default_rng(0)
    for end in (0.0, 0.1, 1.0):
        obs = stacked(random, 9, 5, (3, 4), stack, c, dtype, end)
        assert identical(restored(obs, stack)[0], obs)


@pytest.mark.parametrize(
    "shape", [(4,), (0, 3, 4), (6, 4), (1, 1, 4), (5, 2, 4), (5, 0, 7, 4), (5, 2, 3, 0), (2, 3, 0, 4)]
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_any_array_comes_back_bit_by_bit(shape, dtype):
    obs = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    assert identical(restored(obs, 4)[0], obs)
    assert identical(restored(np.zeros(shape, dtype), 4)[0], np.zeros(shape, dtype))


def test_signs_of_zero_and_nan_come_back():
    obs = np.zeros((4, 2, 4), np.float32)
    obs[1, 0, 2], obs[2, 1, :] = -0.0, np.nan
    assert identical(restored(obs, 4)[0], obs)


def test_an_array_that_is_not_contiguous_comes_back():
    obs = stacked(np.random.default_rng(0), 6, 4, (5, 5), 4, 1, "uint8", 0.2)[:, ::2]
    assert identical(restored(obs, 4)[0], np.ascontiguousarray(obs))


def test_each_frame_is_sent_once():
    obs = stacked(np.random.default_rng(0), 64, 8, (21, 21), 4, 1, "uint8", 0.0)
    size = restored(obs, 4)[1]
    first_stacks = 8 * 21 * 21 * 3
    assert size == obs.nbytes // 4 + first_stacks + 64 * 8 // 8


def test_without_repetition_it_costs_a_bit_for_each_stack():
    obs = np.random.default_rng(0).integers(0, 255, (16, 8, 10, 10, 4)).astype(np.uint8)
    assert restored(obs, 4)[1] == obs.nbytes + 16 * 8 // 8


def test_bytes_that_are_no_encoding_are_refused():
    obs = stacked(np.random.default_rng(0), 5, 3, (4, 4), 4, 1, "uint8", 0.2)
    field, encoded = Field("obs", obs.shape, "uint8", 4), encode_frames(obs, 4)
    for wrong in (b"", encoded[:1], encoded[:-1], encoded + b"\0", encoded[:100], bytes(len(encoded))):
        with pytest.raises(MalformedError, match=r"obs uint8\[5, 3, 4, 4, 4\]"):
            decode_frames(wrong, field)
    flipped = bytes([encoded[0] ^ 255]) + encoded[1:]
    with pytest.raises(MalformedError):
        decode_frames(flipped, field)


def test_a_stack_that_does_not_divide_the_last_axis_is_refused():
    with pytest.raises(ValueError, match="must divide the last axis"):
        encode_frames(np.zeros((2, 2, 6), np.uint8), 4)
