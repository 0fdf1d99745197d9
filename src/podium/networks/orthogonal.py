"""Orthogonal initial weights, by matrix products alone.

LAPACK's QR, which flax's initialiser calls, takes seconds on a busy machine, where its threads wait for each other. And
TD3's initial state, made with it, was seen never to end on XLA's CPU (jaxlib 0.10.2, three processes on two cores): all
threads waited, and nobody worked. Made as here, in the same test, it always ended.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

CLOSE = 1e-5
"""How far products of rows may be from those of orthonormal ones."""
MOST_STEPS = 100
"""Ten are enough for nearly all matrices."""
LARGE = 1024
"""Columns beyond which a matrix is made of smaller ones: the time grows with their cube, to minutes for 4,096."""


def orthogonal(scale: float = 1.0) -> Callable[..., jax.Array]:
    """An initialiser of kernels [..., n], seen as matrices: orthonormal rows or columns, times `scale`."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        matrix = orthonormal_rows(key, min(rows, columns), max(rows, columns))
        return (scale * (matrix if rows <= columns else matrix.T)).reshape(shape).astype(dtype)

    return init


# Traced once for each shape: flax traces initialisers whenever a layer is applied, to compare shapes.
@partial(jax.jit, static_argnums=(1, 2))
def orthonormal_rows(key: jax.Array, rows: int, columns: int) -> jax.Array:
    """A random matrix with orthonormal rows, no taller than wide."""
    if rows > LARGE and (part := _largest_divisor(columns)) > 1:
        return composed(key, part, columns // part)[:rows]
    return nearest_orthogonal(jax.random.normal(key, (rows, columns)))


def nearest_orthogonal(matrix: jax.Array) -> jax.Array:
    """The nearest matrix with orthonormal rows, for one that is no taller than wide.

    Of a matrix of normal numbers it is uniformly distributed, as QR's is. Newton-Schulz iteration of fifth order: each
    step brings every singular value, at most 1 at first, nearer to 1. Steps before it let the small ones grow almost
    twice as fast, but leave all between 0.6 and 1.2 (Jordan et al., 2024).
    """

    def move(x: jax.Array, gram: jax.Array, a: float, b: float, c: float) -> jax.Array:
        return a * x + gram @ (b * x + c * (gram @ x))

    def grow(x: jax.Array) -> jax.Array:
        return move(x, x @ x.T, 3.4445, -4.775, 2.0315)

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, x, gram = carry
        x = move(x, gram, 1.875, -1.25, 0.375)
        return count + 1, x, x @ x.T

    def more(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        count, _, gram = carry
        return (jnp.max(jnp.abs(gram - jnp.eye(len(gram)))) > CLOSE) & (count < MOST_STEPS)

    x = matrix / jnp.linalg.norm(matrix)
    x = jax.lax.fori_loop(0, _growth(*matrix.shape), lambda _, x: grow(x), x)
    return jax.lax.while_loop(more, step, (jnp.int32(0), x, x @ x.T))[1]


def composed(key: jax.Array, m: int, n: int) -> jax.Array:
    """An orthogonal matrix of m n rows from m of size n and n of size m: each number is a product of one of both.

    As a grid of m x n inputs: the rows of the grid are turned, each by a matrix of its own, then its columns.
    """
    first, second = jax.random.split(key)
    rows = jax.vmap(nearest_orthogonal)(jax.random.normal(first, (m, n, n)))
    columns = jax.vmap(nearest_orthogonal)(jax.random.normal(second, (n, m, m)))
    return jnp.einsum("jik,kjl->ijkl", columns, rows).reshape(m * n, m * n)


def _growth(rows: int, columns: int) -> int:
    """Steps in which the least singular value of nearly every normal matrix, its norm 1, grows to about 1."""
    least = max(math.sqrt(columns) - math.sqrt(rows - 1), 0.1 / math.sqrt(rows)) / math.sqrt(rows * columns)
    return math.ceil(math.log(1 / least) / math.log(3.4445))


def _largest_divisor(n: int) -> int:
    """That is no larger than its square root."""
    return max(m for m in range(1, math.isqrt(n) + 1) if n % m == 0)
