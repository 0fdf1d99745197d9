"""Row keys: a row's noise is its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.core.errors import ConfigError
from podium.ops.random_keys import normal, random_keys, row_keys, run_key, uniform


def data(keys):
    return np.asarray(jax.random.key_data(keys))


def test_a_rows_key_does_not_depend_on_its_batch():
    key = run_key(3)
    batch = data(row_keys(key, jnp.arange(16), 7))
    shuffled = data(jax.jit(row_keys)(key, jnp.array([5, 0, 11]), 7))
    np.testing.assert_array_equal(shuffled, batch[[5, 0, 11]])
    np.testing.assert_array_equal(data(row_keys(key, jnp.array([9]), 7)), batch[9:10])


def test_a_rows_key_folds_the_env_id_then_the_step():
    key = run_key(0)
    expected = jax.random.fold_in(jax.random.fold_in(key, 4), 9)
    np.testing.assert_array_equal(data(row_keys(key, jnp.array([4]), 9))[0], data(expected))


def test_rows_may_be_at_different_steps():
    key = run_key(0)
    mixed = data(row_keys(key, jnp.array([0, 1]), jnp.array([5, 6])))
    np.testing.assert_array_equal(mixed[0], data(row_keys(key, jnp.array([0]), 5))[0])
    np.testing.assert_array_equal(mixed[1], data(row_keys(key, jnp.array([1]), 6))[0])


def test_keys_differ_between_rows_steps_and_seeds():
    ids = jnp.arange(32)
    keys = [data(row_keys(run_key(seed), ids, step)) for seed in range(3) for step in range(8)]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 32 * 8 * 3


def test_a_runs_keys_are_the_same_in_every_release():
    keys = random_keys(run_key(3))
    np.testing.assert_array_equal(data(jnp.stack(keys[:3])), data(jax.random.split(run_key(3), 3)))
    np.testing.assert_array_equal(data(keys.draw), [877192987, 3448417067])


def test_no_part_of_a_run_folds_the_key_that_another_has():
    """jax's split(key)[n] is fold_in(key, n): parts that share a key and count from 0 would share numbers."""
    keys = random_keys(run_key(0))
    folded = [data(row_keys(key, jnp.arange(8), counter)) for key in keys for counter in range(4)]
    assert len(np.unique(np.concatenate(folded), axis=0)) == len(keys) * 8 * 4


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_would_repeat_another_is_refused(seed):
    with pytest.raises(ConfigError, match=rf"seed = {seed}: must be from 0 to 4294967295"):
        run_key(seed)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_the_numbers_of_a_row_are_those_of_jax_random(shape):
    keys = jax.random.split(jax.random.key(7), 50)
    expected = jax.vmap(lambda key: jax.random.uniform(key, shape))(keys)
    np.testing.assert_array_equal(uniform(keys, shape), expected)
    expected = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
    np.testing.assert_allclose(normal(keys, shape), expected, rtol=1e-6)
