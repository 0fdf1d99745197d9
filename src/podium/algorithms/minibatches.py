"""Random minibatches whose contents do not depend on how many devices the rows are spread over."""

import math

import jax
import jax.numpy as jnp

MAX_BLOCKS = 8


def num_blocks(num_rows: int, rows_per_minibatch: int) -> int:
    """Into how many fixed blocks the rows are cut: each device holds some of them, whole.

    >>> num_blocks(16, 256), num_blocks(6, 4)
    (8, 2)
    """
    return math.gcd(MAX_BLOCKS, math.gcd(num_rows, rows_per_minibatch))


def shuffle(key: jax.Array, num_items: int, num_minibatches: int, blocks: int, axis: str | None) -> jax.Array:
    """Indices [num_minibatches, items] into this device's items, which lie block by block.

    Each block is permuted by a key of its own global number, and a minibatch takes an equal share of
    every block: so one device with 8 blocks and 8 devices with one draw the same minibatches.
    """
    if axis is not None:
        blocks //= jax.lax.axis_size(axis)
    first_block = 0 if axis is None else jax.lax.axis_index(axis) * blocks
    per_block = num_items // blocks
    keys = jax.vmap(lambda block: jax.random.fold_in(key, block))(first_block + jnp.arange(blocks))
    # One sort of 32 random bits: jax.random.permutation sorts several times to exclude ties, and costs thrice.
    bits = jax.vmap(lambda k: jax.random.bits(k, (per_block,)))(keys)
    order = jnp.argsort(bits, axis=-1) + per_block * jnp.arange(blocks)[:, None]
    return order.reshape(blocks, num_minibatches, -1).swapaxes(0, 1).reshape(num_minibatches, -1)
