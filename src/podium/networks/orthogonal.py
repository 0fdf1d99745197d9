"""Orthogonal initial weights, by matrix products alone.

LAPACK's QR, which flax's initialiser calls, takes seconds on a busy machine, where its threads wait for each other. And
TD3's initial state, made with it, was seen never to end on XLA's CPU (jaxlib 0.10.2, three processes on two cores): all
threads waited, and nobody worked. Made as here, in the same test, it always ended.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

CLOSE = 1e-5
"""How far products of rows may be from those of orthonormal ones."""
MOST_STEPS = 100
"""Twenty are enough for nearly all matrices."""


def orthogonal(scale: float = 1.0) -> Callable[..., jax.Array]:
    """An initialiser of kernels [..., n], seen as matrices: orthonormal rows or columns, times `scale`."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        random = jax.random.normal(key, (min(rows, columns), max(rows, columns)))
        matrix = nearest_orthogonal(random)
        return (scale * (matrix if rows <= columns else matrix.T)).reshape(shape).astype(dtype)

    return init


def nearest_orthogonal(matrix: jax.Array) -> jax.Array:
    """The nearest matrix with orthonormal rows, for one that is no taller than wide.

    Of a matrix of normal numbers it is uniformly distributed, as QR's is. Newton-Schulz iteration of fifth order: each
    step brings every singular value, at most 1 at first, nearer to 1.
    """

    def error(x: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(x @ x.T - jnp.eye(len(x))))

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, x, _ = carry
        gram = x @ x.T
        x = 1.875 * x - gram @ (1.25 * x - 0.375 * (gram @ x))
        return count + 1, x, error(x)

    def more(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        count, _, off = carry
        return (off > CLOSE) & (count < MOST_STEPS)

    x = matrix / jnp.linalg.norm(matrix)
    return jax.lax.while_loop(more, step, (jnp.int32(0), x, jnp.float32(1)))[1]
