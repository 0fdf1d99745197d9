"""A sum tree: draws numbers by their weight, and changes weights, in as many steps as the tree has levels.

    tree = sum_tree.init(1000)
    tree = sum_tree.put(tree, jnp.array([3, 7]), jnp.array([1.0, 2.0]))
    leaves = sum_tree.draw(tree, jnp.array([0.1, 0.9]))         # of [0, 1): here 3, 7

It is one array: the root at 1, the children of i at 2i and 2i + 1, the leaves in the second half. Every inner number
is the sum of its two children, made anew at each change: so that errors of rounding do not grow.
"""

import jax
import jax.numpy as jnp

from podium.core.padding import padded_size

NOBODY = -1
"""A leaf that is none: what is put there is lost."""


def init(size: int) -> jax.Array:
    """All weights 0, for `size` leaves or more."""
    return jnp.zeros(2 * padded_size(size))


def put(tree: jax.Array, leaves: jax.Array, weights: jax.Array) -> jax.Array:
    """The tree with these leaves' weights changed. Of a leaf that is given twice, one of the weights holds."""
    # The number at 0 belongs to no leaf, and is its own parent.
    nodes = jnp.where(leaves == NOBODY, 0, leaves + len(tree) // 2)

    def climb(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tree, nodes = carry
        nodes = nodes // 2
        return tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1]), nodes

    return jax.lax.fori_loop(0, _levels(tree), climb, (tree.at[nodes].set(weights), nodes))[0]


def draw(tree: jax.Array, points: jax.Array) -> jax.Array:
    """The leaves at these points in [0, 1) of the total weight: a leaf is hit by as many as its share of it."""

    def descend(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        nodes, rest = carry
        left = tree[2 * nodes]
        # Where rounding leaves nothing on the right, there is nothing to hit.
        right = (rest >= left) & (tree[2 * nodes + 1] > 0)
        return 2 * nodes + right, jnp.where(right, rest - left, jnp.minimum(rest, left))

    # Loops, not levels written out: XLA would repeat reads of the tree where their results are used, which is after
    # `put` has changed it; and so keep a copy.
    start = jnp.ones(points.shape, jnp.int32), points * tree[1]
    nodes, _ = jax.lax.fori_loop(0, _levels(tree), descend, start)
    return nodes - len(tree) // 2


def weights(tree: jax.Array, leaves: jax.Array) -> jax.Array:
    """Of these leaves."""
    return tree[leaves + len(tree) // 2]


def total(tree: jax.Array) -> jax.Array:
    """Of all leaves."""
    return tree[1]


def _levels(tree: jax.Array) -> int:
    """Between the root and the leaves."""
    return (len(tree) // 2).bit_length() - 1
