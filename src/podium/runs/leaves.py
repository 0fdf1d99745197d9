"""Leaves of a tree as named host arrays: taken out for a checkpoint, checked, and put back.

Typed PRNG keys travel as their key data; numbers of Python and NumPy come back as what they were.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.errors import CheckpointError
from podium.core.types import Tree

KEY_IMPLS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""JAX's generators, by the dtype of their keys."""


@dataclass(frozen=True)
class Leaf:
    """What a leaf is, without its numbers."""

    path: str  # as JAX writes it: ['params']['kernel']
    shape: tuple[int, ...]
    dtype: str  # "float32", or "key<fry>" for typed PRNG keys
    weak: bool = False  # JAX's weak type: part of how a scalar is promoted, so part of an exact resume

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def describe_leaves(tree: Tree) -> list[Leaf]:
    """What leaves a tree has, in tree order; those of `jax.eval_shape` will do."""
    return [_describe(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def copy_leaves(tree: Tree) -> list[np.ndarray]:
    """The numbers, copied to the host, so that the tree's buffers may be donated afterwards."""
    leaves = [_to_data(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()  # all transfers under way before the first is waited for
    return [np.array(leaf, copy=True, order="C") for leaf in leaves]


def check_fit(stored: Sequence[Leaf], template: Tree) -> None:
    """Raise CheckpointError naming the first leaf in which the two differ."""
    have = {leaf.path: leaf for leaf in stored}
    need = {leaf.path: leaf for leaf in describe_leaves(template)}
    for path, leaf in need.items():
        if path not in have:
            raise CheckpointError(f"the checkpoint has no leaf {path}, which this experiment needs ({leaf})")
        if (have[path].shape, have[path].dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(f"the checkpoint's leaf {path} is {have[path]}, this experiment needs {leaf}")
    for path in have:
        if path not in need:
            raise CheckpointError(f"the checkpoint has a leaf {path} ({have[path]}), which this experiment has not")


def put_leaves(template: Tree, stored: Sequence[Leaf], arrays: Sequence[np.ndarray]) -> Tree:
    """A tree like the template, device placement included, with the numbers of the arrays."""
    by_path = {leaf.path: (leaf, array) for leaf, array in zip(stored, arrays, strict=True)}
    return jax.tree_util.tree_map_with_path(
        lambda path, like: _put(like, *by_path[jax.tree_util.keystr(path)]), template
    )


def digest_array(array: np.ndarray) -> str:
    """sha256 over dtype, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def params_digest(tree: Tree) -> str:
    """sha256 over all leaves in tree order: equal if and only if the parameters are, bit for bit.

    The tests of bit-exactness compare runs by it; no run computes it.

    assert params_digest(resumed_params) == params_digest(uninterrupted_params)
    """
    digests = [digest_array(np.asarray(_to_data(leaf))) for leaf in jax.tree_util.tree_leaves(tree)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _describe(path: str, leaf: Any) -> Leaf:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return Leaf(
            path, tuple(leaf.shape), str(leaf.dtype), getattr(leaf, "weak_type", False)
        )  # keys have no such thing
    array = np.asarray(leaf)
    if array.dtype.hasobject or array.dtype.kind in "USmM":
        raise CheckpointError(f"leaf {path} is a {type(leaf).__name__}: a checkpoint holds arrays and numbers only")
    return Leaf(path, array.shape, array.dtype.name)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _put(like: Any, stored: Leaf, array: np.ndarray) -> Any:
    if isinstance(like, bool | int | float | complex | np.generic):  # np.float64 is a float too: its own type counts
        return array[()] if isinstance(like, np.generic) else array.item()
    if isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return _put_on_device(like, stored, array)
    return array


def _put_on_device(like: jax.Array | jax.ShapeDtypeStruct, stored: Leaf, array: np.ndarray) -> jax.Array:
    if _is_key(like):
        value = jax.random.wrap_key_data(jnp.array(array), impl=KEY_IMPLS[stored.dtype])
    elif stored.weak and array.ndim == 0:
        value = jnp.asarray(array.item())  # from a Python number: weakly typed again
    else:
        value = jax.device_put(array, may_alias=False)  # jnp.array would copy it twice
    if isinstance(like, jax.Array):
        return jax.device_put(value, like.sharding) if like.committed else value
    return value if like.sharding is None else jax.device_put(value, like.sharding)
