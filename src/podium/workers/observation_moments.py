"""What individuals have observed, as few numbers: two rows that have the mean and variance of all of it.

A number that comes up n times as often as another weighs n times as much: so the rows mean + deviation and
mean - deviation, each with half of the weight, are to `ops.statistics` what all the observations are. Leaves that are
not floats are passed through by normalisers, and have a zero in their place.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Seen
from podium.core.types import Tree

LARGEST = 1e15
"""Beyond it a simulator has lost its numbers: single precision has no room for the sum of their squares."""


class MomentTally(NamedTuple):
    """Sums over observations inside XLA, of distances from a point amid them: far from 0, squares would lose digits.

    tally = MomentTally.start(obs)                       # [n, ...]: the first ones
    tally = tally.add(obs, valid)
    tally.seen()
    """

    around: Tree
    number: jax.Array
    distance: Tree
    square: Tree

    @classmethod
    def start(cls, obs: Tree) -> Self:
        """Of nothing yet, around the mean of those that are sound."""
        sound = _sound(obs)
        share = sound / jnp.maximum(jnp.sum(sound), 1)

        def middle(x: jax.Array) -> jax.Array:
            if not is_float(x):
                return jnp.zeros(())
            weight = share.reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.sum(jnp.where(weight > 0, weight * x, 0.0), axis=0)

        around = jax.tree.map(middle, obs)
        zeros = jax.tree.map(jnp.zeros_like, around)
        return cls(around, jnp.zeros(()), zeros, zeros)

    def add(self, obs: Tree, valid: jax.Array) -> Self:
        """Rows [n, ...], of which those that are not valid may be anything; those that are not sound are left out."""
        valid = valid & _sound(obs)

        def distances(x: jax.Array, around: jax.Array) -> jax.Array:
            if not is_float(x):
                return jnp.zeros(1)
            return jnp.where(valid.reshape(-1, *(1,) * around.ndim), x - around, 0.0)

        far = jax.tree.map(distances, obs, self.around)
        return self._replace(
            number=self.number + jnp.sum(valid),
            distance=jax.tree.map(lambda total, d: total + jnp.sum(d, axis=0), self.distance, far),
            square=jax.tree.map(lambda total, d: total + jnp.sum(d**2, axis=0), self.square, far),
        )

    def seen(self, like: Tree) -> Seen:
        """As two rows; `like` is an observation, whose dtypes tell what is normalised."""
        number = jnp.maximum(self.number, 1.0)

        def rows(x: jax.Array, around: jax.Array, distance: jax.Array, square: jax.Array) -> jax.Array:
            mean = distance / number
            deviation = jnp.sqrt(jnp.maximum(square / number - mean**2, 0.0))
            return jnp.stack([around + mean + deviation, around + mean - deviation]).astype(x.dtype)

        return Seen(jnp.full(2, self.number / 2), jax.tree.map(rows, like, self.around, self.distance, self.square))


class HostTally:
    """The same on the host, in double precision.

    tally = HostTally(spec.observation)
    tally.add(step.obs, valid)
    tally.write(seen)                # into arrays; and begin again
    """

    def __init__(self, observation: Tree) -> None:
        specs = jax.tree.leaves(observation)
        self._env_snapshots = [place for place, spec in enumerate(specs) if is_float(spec)]
        self._shapes = [specs[place].shape for place in self._env_snapshots]
        self._clear()

    def add(self, obs: Tree, valid: np.ndarray) -> None:
        """Rows [n, ...] of which these are valid; those that are not sound are left out."""
        leaves = jax.tree.leaves(obs)
        for place in self._env_snapshots:
            sound = np.abs(leaves[place]) < LARGEST
            valid = valid & sound.reshape(len(valid), -1).all(axis=1)
        self._number += int(np.count_nonzero(valid))
        for i, place in enumerate(self._env_snapshots):
            rows = leaves[place][valid].astype(np.float64)
            self._sums[i] += rows.sum(axis=0)
            self._squares[i] += (rows * rows).sum(axis=0)

    def write(self, seen: Seen) -> None:
        """Two rows; then nothing has been seen."""
        number = max(self._number, 1)
        seen.weight[...] = self._number / 2
        leaves = jax.tree.leaves(seen.obs)
        for place, total, squares in zip(self._env_snapshots, self._sums, self._squares, strict=True):
            mean = total / number
            deviation = np.sqrt(np.maximum(squares / number - mean**2, 0.0))
            leaves[place][0], leaves[place][1] = mean + deviation, mean - deviation
        self._clear()

    def _clear(self) -> None:
        self._number = 0
        self._sums = [np.zeros(shape) for shape in self._shapes]
        self._squares = [np.zeros(shape) for shape in self._shapes]


def seen_shapes(observation: Tree) -> Seen:
    """Shapes of the two rows, for observations of this spec."""

    def rows(spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *spec.shape) if is_float(spec) else (2,), np.dtype(spec.dtype))

    return Seen(jax.ShapeDtypeStruct((2,), np.dtype(np.float32)), jax.tree.map(rows, observation))


def _sound(obs: Tree) -> jax.Array:
    """Which rows of [n, ...] are finite, and not beyond all measure, in every float."""
    floats = [x for x in jax.tree.leaves(obs) if is_float(x)]
    return jnp.stack([(jnp.abs(x) < LARGEST).all(axis=tuple(range(1, x.ndim))) for x in floats]).all(axis=0)


def is_float(leaf: Any) -> bool:
    """Whether an array, or the spec of one, is normalised."""
    return jnp.issubdtype(np.dtype(leaf.dtype), jnp.floating)
