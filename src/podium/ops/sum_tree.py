"""A sum tree: draws numbers by their weight, and changes weights, in as many steps as the tree has levels.

    tree = sum_tree.init(1000)
    tree = sum_tree.put(tree, jnp.array([3, 7]), jnp.array([1.0, 2.0]))
    leaves = sum_tree.draw(tree, jnp.array([0.1, 0.9]))         # of [0, 1): here 3, 7

It is one array: the root at 1, the children of i at 2i and 2i + 1, the leaves in the second half. Every inner number
is the sum of its two children, made anew at each change: so that errors of rounding do not grow.
"""

import jax
import jax.numpy as jnp


def init(size: int) -> jax.Array:
    """All weights 0, for `size` leaves or more."""
    return jnp.zeros(2 * _leaves(size))


def put(tree: jax.Array, leaves: jax.Array, weights: jax.Array) -> jax.Array:
    """The tree with these leaves' weights changed. Of a leaf that is given twice, one of the weights holds."""
    half = len(tree) // 2
    nodes = leaves + half
    tree = tree.at[nodes].set(weights)
    for _ in range(half.bit_length() - 1):
        nodes = nodes // 2
        tree = tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1])
    return tree


def draw(tree: jax.Array, points: jax.Array) -> jax.Array:
    """The leaves at these points in [0, 1) of the total weight: a leaf is hit by as many as its share of it."""
    half = len(tree) // 2
    nodes, rest = jnp.ones(points.shape, jnp.int32), points * tree[1]
    for _ in range(half.bit_length() - 1):
        left = tree[2 * nodes]
        # Where rounding leaves nothing on the right, there is nothing to hit.
        right = (rest >= left) & (tree[2 * nodes + 1] > 0)
        nodes, rest = 2 * nodes + right, jnp.where(right, rest - left, jnp.minimum(rest, left))
    return nodes - half


def weights(tree: jax.Array, leaves: jax.Array) -> jax.Array:
    """Of these leaves."""
    return tree[leaves + len(tree) // 2]


def total(tree: jax.Array) -> jax.Array:
    """Of all leaves."""
    return tree[1]


def _leaves(size: int) -> int:
    """The power of two that holds so many."""
    return 1 << max(0, size - 1).bit_length()
