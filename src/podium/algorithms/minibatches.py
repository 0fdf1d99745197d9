"""Random minibatches whose contents do not depend on how many devices the rows are spread over."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from podium.core.errors import ConfigError
from podium.core.padding import padded_size
from podium.core.types import Tree

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
        devices = jax.lax.axis_size(axis)
        if blocks % devices:
            raise ConfigError(f"topology.devices = {devices}: must divide the {blocks} block(s) of a minibatch's rows")
        blocks //= devices
    first_block = 0 if axis is None else jax.lax.axis_index(axis) * blocks
    per_block = num_items // blocks
    keys = jax.vmap(lambda block: jax.random.fold_in(key, block))(first_block + jnp.arange(blocks))
    bits = jax.vmap(lambda k: jax.random.bits(k, (per_block,)))(keys)
    # Random high bits with the item's number below them, sorted as plain integers: on the CPU a fifth of
    # argsort's time, and a twelfth of jax.random.permutation's. Equal high bits keep their order, which is rare.
    mask = jnp.uint32(padded_size(per_block) - 1)
    order = jnp.sort((bits & ~mask) | jnp.arange(per_block, dtype=jnp.uint32), axis=-1) & mask
    order = order.astype(jnp.int32) + per_block * jnp.arange(blocks)[:, None]
    return order.reshape(blocks, num_minibatches, -1).swapaxes(0, 1).reshape(num_minibatches, -1)


def sum_over_chunks(function: Callable[[Tree], Tree], rows: Tree, chunk: int) -> Tree:
    """The sum of `function` over pieces of rows [T, b, ...], cut along b: for sums that parts add up to.

    On the CPU only: there, a piece's activations stay in the cache, where those of 65,536 rows do not.
    """
    length, items = jax.tree.leaves(rows)[0].shape[:2]
    chunks = math.gcd(items, max(1, length * items // chunk))
    if chunks == 1 or jax.default_backend() != "cpu":
        return function(rows)
    pieces = jax.tree.map(lambda x: x.reshape(x.shape[0], chunks, -1, *x.shape[2:]).swapaxes(0, 1), rows)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(function, rows))
    return jax.lax.scan(lambda total, piece: (jax.tree.map(jnp.add, total, function(piece)), None), zeros, pieces)[0]
