"""Leaving out what must not be looked at: weighing it by 0 is not enough, because 0 times NaN is NaN."""

from typing import TypeVar

import jax
import jax.numpy as jnp

Rows = TypeVar("Rows")


def zero_where(flags: jax.Array, tree: Rows) -> Rows:
    """0 where flags are set, whose axes are the first ones of every leaf: `zero_where(~valid, fragment.obs)`."""

    def each(x: jax.Array) -> jax.Array:
        return jnp.where(flags.reshape(*flags.shape, *(1,) * (x.ndim - flags.ndim)), jnp.zeros((), x.dtype), x)

    return jax.tree.map(each, tree)
