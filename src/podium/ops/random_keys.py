"""Random keys of a run by their use, and of its rows, whatever batch a row is in."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.errors import ConfigError


def run_key(seed: int) -> jax.Array:
    """The key that all randomness of a run comes from.

    The generator is named, because a default that changes with a flag would change the run.
    """
    # jax keeps the lower 32 bits only, so that seed 2**32 would silently repeat seed 0.
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}: must be from 0 to {2**32 - 1}")
    return jax.random.key(seed, impl="threefry2x32")


class RandomKeys(NamedTuple):
    """The keys of a run's random parts. Each part folds its own counters into its own key."""

    init: jax.Array  # the first parameters
    play: jax.Array  # actions; in fused runs also environments
    learn: jax.Array  # updates; of a fused run also actions
    draw: jax.Array  # rows that replay workers draw, and individuals of a fused population


def random_keys(key: jax.Array) -> RandomKeys:
    """The keys that are split from a run's key."""
    return RandomKeys(*jax.random.split(key, len(RandomKeys._fields)))


def row_keys(key: jax.Array, row_ids: jax.Array, step: jax.Array | int) -> jax.Array:
    """One key for each row: fold_in(fold_in(key, env id), step). `step` is a scalar, or one for each row.

    Row i depends on row_ids[i] and step only. So the noise of an action stays the same when rows
    are batched differently: by slots, by devices, or by whatever an inference worker had pending.

    keys = row_keys(run_key(seed=0), jnp.arange(16), step=3)    # key[16]
    """
    row_ids = jnp.asarray(row_ids)
    steps = jnp.broadcast_to(jnp.asarray(step), row_ids.shape)
    return jax.vmap(lambda row_id, step: jax.random.fold_in(jax.random.fold_in(key, row_id), step))(row_ids, steps)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What jax.random.uniform(key, shape) gives for each key of key[...]: numbers in [0, 1), [..., *shape]."""
    return _to_unit(_bits(key, shape))


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What jax.random.normal(key, shape) gives for each key of key[...], [..., *shape]."""
    low = np.nextafter(np.float32(-1), np.float32(0))  # so that both ends are finite
    symmetric = jnp.maximum(low, _to_unit(_bits(key, shape)) * (1 - low) + low)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(symmetric)


def _bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """32 random bits for each number: Threefry-2x32 with 20 rounds (Salmon et al., 2011), counting up from 0.

    jax.random gives the same bits. But on the CPU it compiles the rounds to a loop, which for the few numbers
    of an action takes longer than the policy's network: unrolled they are one kernel.
    """
    data = jax.random.key_data(key)
    key_0, key_1 = data[..., :1], data[..., 1:]
    schedule = (key_0, key_1, key_0 ^ key_1 ^ np.uint32(0x1BD11BDA))
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    x_0, x_1 = key_0 + jnp.zeros_like(count), key_1 + count
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x_0 = x_0 + x_1
            x_1 = x_0 ^ ((x_1 << np.uint32(turn)) | (x_1 >> np.uint32(32 - turn)))
        x_0 = x_0 + schedule[(group + 1) % 3]
        x_1 = x_1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return (x_0 ^ x_1).reshape(*key.shape, *shape)


def _to_unit(bits: jax.Array) -> jax.Array:
    """Random bits as the fraction of a float in [1, 2), less 1."""
    return jax.lax.bitcast_convert_type((bits >> np.uint32(9)) | np.uint32(0x3F800000), jnp.float32) - 1
