"""Preallocated batches: the arrays of a TimeStep, as one tree or as slices of shared memory."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from podium.core.specs import Action, Box, Discrete, EnvSpec, MultiDiscrete, Observation
from podium.core.types import Tree
from podium.envs.interface import TimeStep

Allocate = Callable[[tuple[int, ...], Any], np.ndarray]


def allocate_step(spec: EnvSpec, rows: int, allocate: Allocate = np.zeros) -> TimeStep:
    """A TimeStep of zeros for B environments: `allocate_step(spec, 8).reward.shape == (8,)`."""
    row = (rows,)
    return TimeStep(
        obs=allocate_observation(spec.observation, rows, allocate),
        reward=allocate(row, np.float32),
        terminated=allocate(row, np.bool_),
        truncated=allocate(row, np.bool_),
        mask=allocate((rows, spec.mask_size), np.bool_) if spec.masked else None,
        episode_return=allocate(row, np.float32),
        episode_length=allocate(row, np.int32),
        episode_over=allocate(row, np.bool_),
        metrics=allocate((rows, len(spec.metrics)), np.float32) if spec.metrics else None,
    )


def allocate_observation(spec: Observation, rows: int, allocate: Allocate = np.zeros) -> Tree:
    """The observation tree with a batch axis in front."""
    if isinstance(spec, Mapping):
        return {key: allocate_observation(part, rows, allocate) for key, part in spec.items()}
    return allocate((rows, *spec.shape), np.dtype(spec.dtype))


def allocate_actions(spec: Action, rows: int, allocate: Allocate = np.zeros) -> np.ndarray:
    """One action a row: int32[B], int32[B, k] or float32[B, *shape]."""
    match spec:
        case Discrete():
            return allocate((rows,), np.int32)
        case MultiDiscrete(nvec):
            return allocate((rows, len(nvec)), np.int32)
        case Box(shape):
            return allocate((rows, *shape), np.float32)


def select_rows(step: TimeStep, rows: slice) -> TimeStep:
    """Views of some rows of every array."""
    return TimeStep(*map_arrays(lambda array: array[rows], tuple(step)))


def map_arrays(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply to every array of a tree of dicts and tuples (and of others like it); None stays None."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: map_arrays(function, part, *(o[key] for o in others)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_arrays(function, part, *(o[i] for o in others)) for i, part in enumerate(tree))
    return function(tree, *others)


class Arena:
    """Cuts arrays out of one block of bytes; two arenas over the same bytes cut the same arrays.

    >>> arena = Arena(bytearray(1024))
    >>> arena.allocate((4,), np.float32).nbytes
    16
    """

    ALIGNMENT = 64  # a cache line, so that processes writing neighbouring arrays do not slow each other

    def __init__(self, block: Any) -> None:
        self._block = block
        self._used = 0

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The next array of the block."""
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(self._block, np.dtype(dtype), count, self._used).reshape(shape)
        self._used += padded(array.nbytes)
        return array


def padded(num_bytes: int) -> int:
    """Bytes that an array of this size takes in an arena."""
    return -(-num_bytes // Arena.ALIGNMENT) * Arena.ALIGNMENT


def measure(build: Callable[[Allocate], Any]) -> int:
    """How many bytes an arena needs for what `build(allocate)` allocates."""
    total = 0

    def count(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        nonlocal total
        total += padded(int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize)
        return np.broadcast_to(np.zeros((), dtype), shape)

    build(count)
    return total
