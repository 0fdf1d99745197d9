"""Schemas: where arrays lie, and in what two of them differ."""

import numpy as np
import pytest

from podium.protocol.schema import ALIGNMENT, Field, Schema, SenderId, Version, check_arrays

SCHEMA = Schema((Field("obs", (5, 4), "float32"), Field("none", (0, 3), "int8"), Field("done", (65,), "bool")))


def test_arrays_begin_on_cache_lines() -> None:
    assert SCHEMA.offsets == (0, 128, 128)
    assert SCHEMA.nbytes == 128 + 0 + 128
    assert [field.nbytes for field in SCHEMA.fields] == [80, 0, 65]
    assert Schema(()).nbytes == 0


def test_views_are_the_block_itself() -> None:
    block = bytearray(64 + SCHEMA.nbytes)
    obs, none, done = SCHEMA.views(block, 64)
    assert (obs.shape, none.shape, done.shape) == ((5, 4), (0, 3), (65,))
    obs[0, 0] = 1.0
    done[64] = True
    assert bytes(block[64:68]) == np.float32(1).tobytes()
    assert block[64 + 128 + 64] == 1


@pytest.mark.parametrize("fields", [(), (Field("none", (0,), "float32"),)])
def test_a_record_may_be_empty(fields: tuple[Field, ...]) -> None:
    assert [array.shape for array in Schema(fields).allocate()] == [field.shape for field in fields]


def test_allocated_arrays_are_aligned_and_zero() -> None:
    for array, field in zip(SCHEMA.allocate(), SCHEMA.fields, strict=True):
        assert (array.shape, array.dtype) == (field.shape, np.dtype(field.dtype))
        assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0
        assert not array.any()


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Schema(SCHEMA.fields[:2]), "3 arrays against 2"),
        (Schema((*SCHEMA.fields[:2], Field("done", (64,), "bool"))), r"done bool[65] against done bool[64]"),
        (Schema((Field("obs", (5, 4), "float64"), *SCHEMA.fields[1:])), "obs float32[5, 4] against obs float64[5, 4]"),
        (Schema((Field("x", (5, 4), "float32"), *SCHEMA.fields[1:])), "obs float32[5, 4] against x float32[5, 4]"),
    ],
)
def test_a_difference_is_named(other: Schema, difference: str) -> None:
    assert SCHEMA.difference(other) == difference


def test_the_same_schema_has_no_difference() -> None:
    again = Schema(tuple(Field(field.name, field.shape, field.dtype) for field in SCHEMA.fields))
    assert SCHEMA.difference(again) is None


def test_arrays_of_another_kind_are_an_error_of_the_caller() -> None:
    arrays = SCHEMA.allocate()
    check_arrays(SCHEMA, arrays)
    with pytest.raises(ValueError, match="2 arrays, the schema has 3"):
        check_arrays(SCHEMA, arrays[:2])
    with pytest.raises(ValueError, match=r"obs float32\[5, 4\]: got float64\[5, 4\]"):
        check_arrays(SCHEMA, [arrays[0].astype(float), *arrays[1:]])
    with pytest.raises(ValueError, match=r"obs float32\[5, 4\]: got float32\[4, 5\]"):
        check_arrays(SCHEMA, [arrays[0].reshape(4, 5), *arrays[1:]])


def test_a_restored_learner_is_newer_than_its_predecessor() -> None:
    assert Version(1, 0) > Version(0, 10_000)
    assert Version(1, 2) > Version(1, 1)
    assert SenderId(2, 5) != SenderId(2, 6)
