"""Targets of the n-step rows of a replay buffer: by hand, against rlax, and at the ends of episodes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.ops.returns import bootstrapped_returns

with warnings.catch_warnings():  # rlax imports tensorflow_probability, which uses names that jax deprecates
    warnings.simplefilter("ignore")
    import rlax


def test_by_hand_with_few_steps_and_with_an_end():
    rewards = jnp.array([[1.0, 2.0, 4.0], [1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [8.0, 0.0, 0.0]])
    steps = jnp.array([3, 2, 2, 1])
    terminated = jnp.array([False, False, True, False])
    value = jnp.array([16.0, 16.0, 16.0, 16.0])
    targets = jax.jit(bootstrapped_returns)(rewards, steps, value, terminated, 0.5)
    np.testing.assert_allclose(targets, [1 + 1 + 1 + 2, 1 + 1 + 4, 1 + 1, 8 + 8])


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_full_rows_agree_with_rlax(gamma):
    rng = np.random.default_rng(0)
    rewards, value = jnp.asarray(rng.normal(size=(5, 4)), jnp.float32), jnp.asarray(rng.normal(size=5), jnp.float32)
    terminated = jnp.array([False, True, False, False, True])
    # rlax has a discount for each step, and a value after each; only the last one's is looked at.
    discounts = jnp.full((5, 4), gamma).at[:, -1].set(jnp.where(terminated, 0.0, gamma))
    values = jnp.zeros((5, 4)).at[:, -1].set(value)
    expected = jax.vmap(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, 4)[0])(rewards, discounts, values)
    targets = bootstrapped_returns(rewards, jnp.full(5, 4), value, terminated, gamma)
    np.testing.assert_allclose(targets, expected, rtol=1e-5, atol=1e-6)


def test_the_value_after_an_end_may_be_no_number():
    targets = bootstrapped_returns(
        jnp.ones((2, 1)), jnp.ones(2, int), jnp.array([jnp.nan, 2.0]), jnp.array([True, False]), 0.5
    )
    np.testing.assert_allclose(targets, [1.0, 2.0])


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="must each be"):
        bootstrapped_returns(jnp.ones((3, 2)), jnp.ones(3, int), jnp.ones((3, 2)), jnp.zeros(3, bool), 0.9)
