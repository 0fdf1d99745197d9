"""V-trace: by hand, against rlax, on-policy against returns and advantages, and across the ends of episodes."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.ops.returns import generalized_advantages, lambda_returns, n_step_returns
from podium.ops.vtrace import vtrace

with warnings.catch_warnings():  # rlax imports tensorflow_probability, which uses names that jax deprecates
    warnings.simplefilter("ignore")
    import rlax

variants = pytest.mark.parametrize("variant", [lambda f: f, jax.jit], ids=["plain", "jitted"])


def column(*numbers, dtype=jnp.float32):
    return jnp.array(numbers, dtype)[:, None]


def flags(*numbers):
    return column(*numbers, dtype=bool)


# One-step errors with γ = 1/2: (1 + 2 - 8, 2 + 1 - 4, 4 + 3 - 2) = (-5, -1, 5)
R, V, NEVER = column(1, 2, 4), column(8, 4, 2, 6), flags(0, 0, 0)
RATIO = column(0.5, 4.0, 2.0)


def random_steps(seed, T=23, B=6, end_rate=0.2):
    """log-ratios, rewards, values, terminations, truncations and validity; each end is followed by a reset row."""
    rng = np.random.default_rng(seed)
    ended, terminated, valid = np.zeros((3, T, B), bool)
    for t in range(T):
        valid[t] = ~ended[t - 1] if t else True
        ended[t] = valid[t] & (rng.random(B) < end_rate)
        terminated[t] = ended[t] & (rng.random(B) < 0.5)
    log_ratio, r, v = rng.normal(size=(T, B)), rng.normal(size=(T, B)), rng.normal(size=(T + 1, B))
    floats = tuple(jnp.asarray(x, jnp.float32) for x in (log_ratio, r, v))
    return *floats, jnp.asarray(terminated), jnp.asarray(ended & ~terminated), jnp.asarray(valid)


@variants
def test_targets_and_advantages_by_hand(variant):
    found = variant(vtrace)(jnp.log(RATIO), R, V, NEVER, NEVER, 0.5)
    # ρ = c = (1/2, 1, 1); e_2 = 5, e_1 = -1 + 5/2 = 3/2, e_0 = -5/2 + 1/2 · 1/2 · 3/2 = -17/8
    np.testing.assert_allclose(found.rho[:, 0], [0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(found.target[:, 0], [8 - 2.125, 4 + 1.5, 2 + 5], rtol=1e-6)
    np.testing.assert_allclose(found.advantage[:, 0], [-5 + 0.75, -1 + 2.5, 5], rtol=1e-6)


@variants
def test_each_clip_bounds_what_it_says(variant):
    found = variant(vtrace)(jnp.log(RATIO), R, V, NEVER, NEVER, 0.5, 1.0, 3.0, 1.5)
    # ρ = (1/2, 3, 2), c = (1/2, 3/2, 3/2); e_2 = 10, e_1 = -3 + 1/2 · 3/2 · 10 = 9/2, e_0 = -5/2 + 1/4 · 9/2
    np.testing.assert_allclose(found.rho[:, 0], [0.5, 3, 2], rtol=1e-6)
    np.testing.assert_allclose(found.target[:, 0] - V[:-1, 0], [-2.5 + 1.125, 4.5, 10], rtol=1e-6)
    np.testing.assert_allclose(found.advantage[:, 0], [-5 + 2.25, -1 + 5, 5], rtol=1e-6)


@variants
def test_termination_drops_the_future_and_truncation_keeps_its_value(variant):
    f, end = variant(partial(vtrace, gamma=0.5)), flags(0, 1, 0)
    terminated, truncated = f(jnp.log(RATIO), R, V, end, NEVER), f(jnp.log(RATIO), R, V, NEVER, end)
    # e_1 = 2 - 4 = -2, or 2 + 1 - 4 = -1; e_0 = -5/2 + 1/4 e_1
    np.testing.assert_allclose(terminated.target[:2, 0], [8 - 2.5 - 0.5, 2], rtol=1e-6)
    np.testing.assert_allclose(terminated.advantage[:2, 0], [-5 - 1, -2], rtol=1e-6)
    np.testing.assert_allclose(truncated.target[:2, 0], [8 - 2.5 - 0.25, 3], rtol=1e-6)
    np.testing.assert_allclose(truncated.advantage[:2, 0], [-5 - 0.5, -1], rtol=1e-6)


@variants
@pytest.mark.parametrize("lambda_", [1.0, 0.7])
def test_it_agrees_with_rlax_where_episodes_terminate(variant, lambda_):
    log_ratio, r, v, terminated, _, _ = random_steps(1)
    discount = 0.97 * (1.0 - terminated)
    reference = partial(rlax.vtrace_td_error_and_advantage, lambda_=lambda_, clip_rho_threshold=1.3)

    def one(v, r, discount, ratio):
        return reference(v[:-1], v[1:], r, discount, ratio, clip_pg_rho_threshold=1.3)

    expected = jax.jit(jax.vmap(one, in_axes=1, out_axes=1))(v, r, discount, jnp.exp(log_ratio))
    found = variant(vtrace)(log_ratio, r, v, terminated, jnp.zeros_like(terminated), 0.97, lambda_, 1.3, 1.0)
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    close(found.target - v[:-1], expected.errors)
    close(found.rho * found.advantage, expected.pg_advantage)


def test_on_policy_targets_are_returns_of_as_many_steps_as_there_are():
    _, r, v, terminated, truncated, _ = random_steps(2)
    found = vtrace(jnp.zeros_like(r), r, v, terminated, truncated, 0.9)
    returns = n_step_returns(r, v, terminated, truncated, 0.9, n=len(r))
    np.testing.assert_allclose(found.target, returns, rtol=1e-5, atol=1e-5)


def test_on_policy_it_gives_lambda_returns_and_generalised_advantages():
    _, r, v, terminated, truncated, _ = random_steps(3)
    ends = terminated, truncated, 0.9, 0.8
    found = vtrace(jnp.zeros_like(r), r, v, *ends)
    np.testing.assert_allclose(found.target, lambda_returns(r, v, *ends), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.advantage, generalized_advantages(r, v, *ends), rtol=1e-5, atol=1e-5)


def test_a_policy_that_would_not_have_acted_so_learns_nothing_from_it():
    found = vtrace(jnp.full((3, 1), -jnp.inf), R, V, NEVER, NEVER, 0.5)
    np.testing.assert_array_equal(found.target, V[:-1])
    np.testing.assert_array_equal(found.rho, jnp.zeros((3, 1)))


def test_unclipped_weights_find_the_values_of_the_learners_policy():
    # A bandit whose arms pay 0 and 1; the actor pulls the second with 1/2, the learner with 9/10.
    paid = jnp.array([[0.0, 1.0]])
    log_ratio = jnp.log(jnp.array([[0.1, 0.9]]) / 0.5)
    value, always = jnp.full((2, 2), 0.3), jnp.ones((1, 2), bool)
    found = vtrace(log_ratio, paid, value, always, ~always, 0.5, 1.0, jnp.inf, jnp.inf)
    # The mean over the actor's arms moves 0.3 to the learner's 0.9.
    np.testing.assert_allclose(jnp.mean(found.target), 0.9, rtol=1e-6)


def test_nothing_of_a_reset_row_reaches_another():
    log_ratio, r, v, terminated, truncated, valid = random_steps(4)
    clean = vtrace(log_ratio, r, v, terminated, truncated, 0.9)
    after_termination = jnp.concatenate([jnp.zeros_like(terminated[:1]), terminated])
    nan_ratio, nan_r = jnp.where(valid, log_ratio, jnp.nan), jnp.where(valid, r, jnp.nan)
    dirty = vtrace(nan_ratio, nan_r, jnp.where(after_termination, jnp.nan, v), terminated, truncated, 0.9)
    assert np.sum(~valid) > 10
    for a, b in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[valid], np.asarray(b)[valid])


def test_ratios_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"log_ratio_t has shape \(4, 1\), but r_t has \(3, 1\)"):
        vtrace(V, R, V, NEVER, NEVER, 0.5)
    with pytest.raises(ValueError, match=r"v_t has shape \(3, 1\), but r_t has \(3, 1\): must be \(4, 1\)"):
        vtrace(R, R, R, NEVER, NEVER, 0.5)
