"""SAC against known answers: soft targets and log-probabilities by hand, the temperature, a known optimum."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_rows import (
    LINEAR,
    MIDDLE,
    REACH,
    SPEC,
    critics_by_hand,
    draw_linear,
    draw_rows,
    experiment,
    look,
    policy_by_hand,
    returns_by_hand,
    start,
    to_unit,
    train_on,
    updates_over_devices,
    with_bad_row,
)

from podium.algorithms import off_policy, sac
from podium.core.algorithm_configs import SACConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Discrete, EnvSpec
from podium.networks.critics import make_critics, make_policy
from podium.ops.distributions import TanhGaussian

CONFIG = SACConfig(gamma=0.9, tau=0.1, learning_rate=1e-2)
KEY = jax.random.key(3)


def sample_by_hand(policy, obs, key):
    """Actions and their log-densities in units of the box: of the Gaussian, over the slope of tanh."""
    mean, log_std = np.split(policy_by_hand(policy, obs), 2, axis=1)
    z = np.asarray(jax.random.normal(key, mean.T.shape), np.float64).T
    u = mean + np.exp(log_std) * z
    density = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), np.sum(density - np.log1p(-(np.tanh(u) ** 2)), axis=1)


@cache
def compiled():
    algorithm, state = start(sac, CONFIG)
    return algorithm, jax.jit(algorithm.update), state


def agent():
    """The algorithm, its update as compiled once, and a state that may be changed."""
    algorithm, update, state = compiled()
    return algorithm, update, jax.tree.map(jnp.copy, state)


def make_networks():
    network = experiment(CONFIG).network
    return make_policy(network, SPEC, 4), make_critics(network, SPEC, 2)


def with_log_std(state, log_std):
    state.policy.params["tower"]["head"]["bias"] = jnp.array([0.0, 0.0, log_std, log_std])[:, None]
    return state


@pytest.fixture(scope="module")
def updated():
    """A state, the rows, and what an update of them gave."""
    drawn = draw_rows()._replace(weight=np.linspace(0.1, 1.0, 8).astype(np.float32))
    _, update, state = agent()
    state = state._replace(log_temperature=state.log_temperature._replace(params=jnp.log(0.3)))
    return state, drawn, update(state, drawn, KEY)


def test_the_critics_loss_is_the_one_of_soft_targets_by_hand(updated):
    state, (rows, weight), (_, metrics, priorities) = updated
    next_key, _ = jax.random.split(KEY)
    next_action, log_prob = sample_by_hand(state.policy.params, rows.next_obs, next_key)
    next_value = critics_by_hand(state.target_critics, rows.next_obs, next_action).min(axis=0) - 0.3 * log_prob
    errors = critics_by_hand(state.critics.params, rows.obs, to_unit(rows.action)) - returns_by_hand(
        rows, next_value, 0.9
    )
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * np.sum(np.mean(weight * errors**2, axis=1)), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.mean(np.abs(errors), axis=0), rtol=1e-4, atol=1e-5)


def test_the_policys_loss_is_the_one_by_hand_with_the_critics_just_trained(updated):
    state, (rows, weight), (after, metrics, _) = updated
    _, key = jax.random.split(KEY)
    action, log_prob = sample_by_hand(state.policy.params, rows.obs, key)
    value = critics_by_hand(after.critics.params, rows.obs, action).min(axis=0)
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(weight * (0.3 * log_prob - value)), rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -np.mean(log_prob), rtol=1e-4)
    np.testing.assert_allclose(metrics["temperature"], 0.3, rtol=1e-6)


def test_samples_have_the_log_probability_of_the_squashed_gaussian_however_far_out():
    """That of TanhGaussian, which tests/ops integrates numerically."""
    _, _, state = agent()
    one = sac.SAC(CONFIG, *make_networks(), off_policy.make_box(SPEC, "sac"))
    obs = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    for log_std in (-1.0, 0.5):
        params = with_log_std(state, log_std).policy.params
        action, log_prob = one.sample(params, obs, KEY)
        mean, deviation = one.gaussian(params, obs)
        known = TanhGaussian(mean.T, deviation.T, (-1.0, -1.0), (1.0, 1.0))
        np.testing.assert_allclose(log_prob, known.log_prob(action.T), rtol=1e-3, atol=1e-3)
    far = with_log_std(state, 2.0).policy.params
    far["tower"]["head"]["bias"] = jnp.array([30.0, -30.0, 0.0, 0.0])[:, None]
    gradient = jax.grad(lambda policy: jnp.sum(one.sample(policy, obs, KEY)[1]))(far)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))


def test_target_critics_go_a_part_tau_of_the_way(updated):
    state, _, (after, _, _) = updated
    expected = jax.tree.map(lambda o, n: 0.9 * np.asarray(o) + 0.1 * n, state.target_critics, after.critics.params)
    jax.tree.map(lambda e, t: np.testing.assert_allclose(t, e, atol=1e-6), expected, after.target_critics)


@pytest.mark.parametrize(("log_std", "direction"), [(0.0, -1), (-3.0, 1)])
def test_the_temperature_falls_where_entropy_is_above_its_target_and_rises_below(log_std, direction):
    # Entropies in units of the box are at most 2 log 2; a deviation of e^-3 has about 2 (1.4 - 3), which is below -2.
    _, update, state = agent()
    after, metrics, _ = update(with_log_std(state, log_std), draw_rows(), KEY)
    assert (metrics["entropy"] > -2.0) == (direction < 0)
    # Adam's first step is the learning rate, whatever the gradient's size.
    np.testing.assert_allclose(after.log_temperature.params, direction * 1e-2, rtol=1e-3)


def test_the_target_entropy_is_minus_the_number_of_dimensions(updated):
    state, (rows, weight), (after, _, _) = updated
    _, key = jax.random.split(KEY)
    _, log_prob = sample_by_hand(state.policy.params, rows.obs, key)
    gradient = np.mean(weight * (-log_prob + 2.0))
    np.testing.assert_allclose(after.log_temperature.optimizer.mu, 0.1 * gradient, rtol=1e-4)


def test_a_row_of_weight_0_changes_nothing_whatever_it_holds():
    _, update, state = agent()
    full = draw_rows()
    # Of as many rows, so that each has the same noise: one is left out by its weight, and holds something or nothing.
    weight = np.where(np.arange(8) == 7, 0.0, 1.0).astype(np.float32)
    emptied = with_bad_row(jax.tree.map(lambda x: x[:7], full))
    left_out, nothing = update(state, full._replace(weight=weight), KEY), update(state, emptied, KEY)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(nothing[0]))
    jax.tree.map(np.testing.assert_array_equal, left_out[:2], nothing[:2])


def test_rows_spread_over_devices_give_the_same_gradients():
    """Noise depends on a device's rows, so it is held still: by next to no deviation, and entropy worth nothing."""
    algorithm, update, state = agent()
    state = with_log_std(state, -20.0)
    state = state._replace(log_temperature=state.log_temperature._replace(params=jnp.float32(-100)))
    drawn = draw_rows()
    alone = update(state, drawn, KEY)[0]
    together = updates_over_devices(algorithm, state, drawn, KEY, devices=2)
    # Adam's first moment is a tenth of the gradient; its first step is all sign, also of mere rounding.
    moments = alone.critics.optimizer.mu, together.critics.optimizer.mu
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), *moments)


def test_actions_are_random_first_then_the_policys_and_greedy_ones_its_middle():
    algorithm, _, state = agent()
    obs = np.ones((2000, 3), np.float32)
    unit = to_unit(algorithm.act(algorithm.params(state), (), look(obs), False)[0])
    np.testing.assert_allclose(unit.var(0), 1 / 3, atol=0.02)
    assert np.all(np.abs(unit) <= 1)
    params = algorithm.params(state._replace(updates=jnp.int32(1)))
    mean, log_std = np.split(policy_by_hand(state.policy.params, obs), 2, axis=1)
    inner = np.arctanh(np.clip(to_unit(algorithm.act(params, (), look(obs), False)[0]), -1 + 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(inner.std(0), np.exp(log_std[0]), rtol=0.05)
    half = np.arctanh(to_unit(algorithm.act(params, (), look(obs, exploration=0.5), False)[0]))
    np.testing.assert_allclose(half.std(0), 0.5 * np.exp(log_std[0]), rtol=0.05)
    for quiet in (
        algorithm.act(params, (), look(obs), True),
        algorithm.act(params, (), look(obs, exploration=0.0), False),
    ):
        np.testing.assert_allclose(quiet[0], MIDDLE + REACH * np.tanh(mean), rtol=1e-5)


def draw_bandit(key, rows):
    """One step: the reward is -(u - 0.5 s)², so the best policy of temperature α is a Gaussian of mean 0.5 s and
    variance α / 2."""
    drawn = draw_linear(key, rows)
    rewards = -((drawn.rows.action - 0.5 * drawn.rows.obs) ** 2)
    return drawn._replace(rows=drawn.rows._replace(rewards=rewards, terminated=jnp.ones(rows, bool)))


def test_a_quadratic_bandits_best_policy_has_the_mean_and_the_width_that_theory_says():
    config = SACConfig(temperature=0.05, learning_rate=3e-3)
    algorithm, state = start(sac, config, LINEAR, hidden=(32, 32), activation="tanh")
    state, metrics = train_on(draw_bandit, algorithm, state, updates=1500, rows=128)
    np.testing.assert_allclose(metrics["temperature"], 0.05, rtol=1e-6)
    params = algorithm.params(state)
    for s in (-1.0, 0.0, 1.0):
        action = np.asarray(algorithm.act(params, (), look(np.full((2000, 1), s, np.float32)), False)[0])
        np.testing.assert_allclose(action.mean(), 0.5 * s, atol=0.06)
        np.testing.assert_allclose(action.std(), np.sqrt(0.05 / 2), atol=0.03)


def test_other_actions_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="needs continuous actions"):
        start(sac, CONFIG, EnvSpec(Array((3,)), Discrete(3)))
