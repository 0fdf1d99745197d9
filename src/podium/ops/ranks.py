"""Ranks in the place of returns: what matters is who was better than whom, not by how much."""

import jax
import jax.numpy as jnp


def centered_ranks(x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Ranks of x[n] spread evenly over [-1/2, 1/2]; equal numbers share the mean of their ranks. What is not finite
    comes last: a simulator that has lost its numbers is not the best.

    Where `valid` is False a number has no rank, and changes nobody's: it gets 0.

    >>> centered_ranks(jnp.array([3.0, -1.0, 3.0, 7.0, 1.0])).tolist()
    [0.125, -0.5, 0.125, 0.5, -0.25]
    """
    valid = jnp.ones(x.shape, bool) if valid is None else valid
    count = jnp.sum(valid)
    # Those without a rank go behind all others: they are not counted.
    x = jnp.where(valid, jnp.where(jnp.isfinite(x), x, -jnp.inf), jnp.inf)
    in_order = jnp.sort(x)
    below = jnp.searchsorted(in_order, x, side="left")
    not_above = jnp.searchsorted(in_order, x, side="right")
    rank = (below + not_above - 1) / 2
    return jnp.where(valid, rank / jnp.maximum(count - 1, 1) - 0.5, 0.0) * (count > 1)
