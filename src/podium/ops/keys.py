"""Random keys that belong to a row, whatever batch the row is in."""

import jax
import jax.numpy as jnp

from podium.core.errors import ConfigError


def run_key(seed: int) -> jax.Array:
    """The key that all randomness of a run comes from.

    The generator is named, because a default that changes with a flag would change the run.
    """
    # jax keeps the lower 32 bits only, so that seed 2**32 would silently repeat seed 0.
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}: must be from 0 to {2**32 - 1}")
    return jax.random.key(seed, impl="threefry2x32")


def row_keys(key: jax.Array, env_ids: jax.Array, step: jax.Array | int) -> jax.Array:
    """One key for each row: fold_in(fold_in(key, env id), step). `step` is a scalar, or one for each row.

    Row i depends on env_ids[i] and step only. So the noise of an action stays the same when rows
    are batched differently: by slots, by devices, or by whatever an inference worker had pending.

    keys = row_keys(run_key(seed=0), jnp.arange(16), step=3)    # key[16]
    """
    env_ids = jnp.asarray(env_ids)
    steps = jnp.broadcast_to(jnp.asarray(step), env_ids.shape)
    return jax.vmap(lambda env_id, step: jax.random.fold_in(jax.random.fold_in(key, env_id), step))(env_ids, steps)
