"""Returns and advantages: by hand, against rlax, and across the ends of episodes."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.ops.returns import generalized_advantages, lambda_returns, n_step_returns

with warnings.catch_warnings():  # rlax imports tensorflow_probability, which uses names that jax deprecates
    warnings.simplefilter("ignore")
    import rlax

GAMMA, LAMBDA = 0.5, 0.5
variants = pytest.mark.parametrize("variant", [lambda f: f, jax.jit], ids=["plain", "jitted"])

BOOTSTRAPPED = {
    "generalized_advantages": partial(generalized_advantages, lambda_=0.9),
    "lambda_returns": partial(lambda_returns, lambda_=0.9),
    "n_step_returns": partial(n_step_returns, n=3),
}
every_function = pytest.mark.parametrize("function", BOOTSTRAPPED.values(), ids=BOOTSTRAPPED.keys())


def column(*numbers, dtype=jnp.float32):
    return jnp.array(numbers, dtype)[:, None]


def flags(*numbers):
    return column(*numbers, dtype=bool)


R, V = column(1, 2, 4), column(8, 4, 2, 6)
NEVER = flags(0, 0, 0)


def random_fragment(key, T=37, B=5, end_rate=0.2):
    """A fragment in canonical layout: each end is followed by a reset row."""
    rng = np.random.default_rng(key)
    terminated, truncated, valid = np.zeros((3, T, B), bool)
    for b in range(B):
        reset = False
        for t in range(T):
            valid[t, b] = not reset
            ended = not reset and rng.random() < end_rate
            terminated[t, b] = ended and rng.random() < 0.5
            truncated[t, b] = ended and not terminated[t, b]
            reset = ended
    r, v = rng.normal(size=(T, B)), rng.normal(size=(T + 1, B))
    return tuple(map(jnp.asarray, (np.float32(r * valid), np.float32(v), terminated, truncated, valid)))


def episodes(terminated, truncated, valid):
    """(first row, row after the last, how it ends) of each stretch of valid rows in one column."""
    start = None
    for t in range(len(valid)):
        if start is None and valid[t]:
            start = t
        if start is not None and (terminated[t] or truncated[t] or t == len(valid) - 1):
            yield start, t + 1, bool(terminated[t])
            start = None


@variants
def test_advantages_by_hand(variant):
    # δ = (1 + 2 - 8, 2 + 1 - 4, 4 + 3 - 2) = (-5, -1, 5), γλ = 1/4
    advantages = variant(generalized_advantages)(R, V, NEVER, NEVER, GAMMA, LAMBDA)
    np.testing.assert_allclose(advantages[:, 0], [-5 + 0.25 * 0.25, -1 + 0.25 * 5, 5])


@variants
def test_termination_drops_the_future_and_truncation_keeps_its_value(variant):
    f = variant(generalized_advantages)
    end = flags(0, 1, 0)
    np.testing.assert_allclose(f(R, V, end, NEVER, GAMMA, LAMBDA)[:, 0], [-5 + 0.25 * -2, 2 - 4, 5])
    np.testing.assert_allclose(f(R, V, NEVER, end, GAMMA, LAMBDA)[:, 0], [-5 + 0.25 * -1, 2 + 0.5 * 2 - 4, 5])


@variants
def test_lambda_returns_by_hand(variant):
    f = variant(lambda_returns)
    end = flags(0, 1, 0)
    # G_2 = 4 + 0.5 * 6 = 7; G_1 = 2 + 0.5 (0.5 * 2 + 0.5 * 7) = 4.25; G_0 = 1 + 0.5 (0.5 * 4 + 0.5 * 4.25)
    np.testing.assert_allclose(f(R, V, NEVER, NEVER, GAMMA, LAMBDA)[:, 0], [3.0625, 4.25, 7])
    np.testing.assert_allclose(f(R, V, end, NEVER, GAMMA, LAMBDA)[:, 0], [1 + 0.5 * (2 + 1), 2, 7])
    np.testing.assert_allclose(f(R, V, NEVER, end, GAMMA, LAMBDA)[:, 0], [1 + 0.5 * (2 + 1.5), 2 + 0.5 * 2, 7])


@variants
def test_n_step_returns_by_hand(variant):
    f = variant(partial(n_step_returns, n=2))
    end = flags(0, 1, 0)
    np.testing.assert_allclose(f(R, V, NEVER, NEVER, GAMMA)[:, 0], [1 + 1 + 0.5, 2 + 2 + 1.5, 4 + 3])
    np.testing.assert_allclose(f(R, V, end, NEVER, GAMMA)[:, 0], [1 + 1, 2, 4 + 3])
    np.testing.assert_allclose(f(R, V, NEVER, end, GAMMA)[:, 0], [1 + 1 + 0.5, 2 + 1, 4 + 3])


@variants
@pytest.mark.parametrize("T", [1, 20])
def test_all_agree_with_rlax_where_episodes_terminate(variant, T):
    r, v, terminated, _, _ = random_fragment(T, T=T)
    never = jnp.zeros_like(terminated)
    discount = 0.97 * (1.0 - terminated)

    def over_columns(f):
        return jax.jit(jax.vmap(f, in_axes=1, out_axes=1))

    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    close(
        variant(generalized_advantages)(r, v, terminated, never, 0.97, 0.8),
        over_columns(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.8, v))(r, discount, v),
    )
    close(
        variant(lambda_returns)(r, v, terminated, never, 0.97, 0.8),
        over_columns(lambda r, d, v: rlax.lambda_returns(r, d, v[1:], 0.8))(r, discount, v),
    )
    for n in (1, 3, 100):
        close(
            variant(partial(n_step_returns, n=n))(r, v, terminated, never, 0.97),
            over_columns(lambda r, d, v, n=n: rlax.n_step_bootstrapped_returns(r, d, v[1:], n))(r, discount, v),
        )


@every_function
def test_each_episode_gives_what_it_gives_alone(function):
    r, v, terminated, truncated, valid = random_fragment(1, T=16, B=4, end_rate=0.35)
    function = jax.jit(function)
    together = np.asarray(function(r, v, terminated, truncated, gamma=0.9))
    checked = 0
    for b in range(r.shape[1]):
        for start, stop, is_terminal in episodes(*(np.asarray(x[:, b]) for x in (terminated, truncated, valid))):
            v_alone = v[start : stop + 1, b : b + 1]
            if is_terminal:
                v_alone = v_alone.at[-1].set(0.0)
            never = jnp.zeros((stop - start, 1), bool)
            alone = function(r[start:stop, b : b + 1], v_alone, never, never, gamma=0.9)
            np.testing.assert_allclose(together[start:stop, b], alone[:, 0], rtol=1e-5, atol=1e-5)
            checked += stop - start
    assert checked == np.sum(valid)
    assert np.sum(~valid) >= 8


@every_function
def test_nothing_of_a_reset_row_reaches_another(function):
    r, v, terminated, truncated, valid = random_fragment(2)
    clean = function(r, v, terminated, truncated, gamma=0.9)
    # A reset row's own value is the final observation's: after a termination, nothing may look at that either.
    after_termination = jnp.concatenate([jnp.zeros_like(terminated[:1]), terminated])
    dirty = function(
        jnp.where(valid, r, jnp.nan), jnp.where(after_termination, jnp.nan, v), terminated, truncated, gamma=0.9
    )
    np.testing.assert_array_equal(np.asarray(dirty)[valid], np.asarray(clean)[valid])


def test_lambda_returns_are_advantages_and_values():
    r, v, terminated, truncated, _ = random_fragment(3)
    advantages = generalized_advantages(r, v, terminated, truncated, 0.99, 0.95)
    returns = lambda_returns(r, v, terminated, truncated, 0.99, 0.95)
    np.testing.assert_allclose(advantages + v[:-1], returns, rtol=1e-5, atol=1e-5)


def test_lambda_one_is_as_many_steps_as_there_are():
    r, v, terminated, truncated, _ = random_fragment(4)
    whole = n_step_returns(r, v, terminated, truncated, 0.9, n=1000)
    np.testing.assert_allclose(lambda_returns(r, v, terminated, truncated, 0.9, 1.0), whole, rtol=1e-5, atol=1e-5)


def test_a_traced_gamma_and_lambda_compile_once():
    traces = []

    @jax.jit
    def f(gamma, lambda_):
        traces.append(gamma)
        return generalized_advantages(R, V, NEVER, NEVER, gamma, lambda_)

    np.testing.assert_allclose(f(0.5, 0.5)[:, 0], [-4.9375, 0.25, 5])
    np.testing.assert_allclose(f(0.5, 0.0)[:, 0], [-5, -1, 5])
    assert len(traces) == 1


@every_function
def test_gradients_by_the_rewards_are_finite(function):
    r, v, terminated, truncated, _ = random_fragment(5)
    gradient = jax.grad(lambda r: jnp.sum(function(r, v, terminated, truncated, gamma=0.9)))(r)
    assert np.all(np.isfinite(gradient))


def test_a_value_too_few_is_refused():
    with pytest.raises(ValueError, match=r"v_t has shape \(3, 1\), but r_t has \(3, 1\): must be \(4, 1\)"):
        generalized_advantages(R, V[1:], NEVER, NEVER, GAMMA, LAMBDA)


def test_flags_that_are_not_flags_are_refused():
    with pytest.raises(ValueError, match="truncated_t has dtype float32: must be bool"):
        n_step_returns(R, V, NEVER, R, GAMMA, n=2)
