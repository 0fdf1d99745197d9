"""DDPG against known answers: by hand, on a linear-quadratic task, on one device and on several."""

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
    best_gain,
    critics_by_hand,
    draw_linear,
    draw_rows,
    look,
    policy_by_hand,
    returns_by_hand,
    start,
    to_unit,
    train_on,
    updates_over_devices,
    with_bad_row,
)

from podium.algorithms import ddpg
from podium.core.algorithm_configs import DDPGConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete, EnvSpec

CONFIG = DDPGConfig(gamma=0.9, tau=0.1, learning_rate=1e-2, noise=0.2)
KEY = jax.random.key(3)


@cache
def agent():
    """The algorithm, its update as compiled once, and its first state."""
    algorithm, state = start(ddpg, CONFIG)
    return algorithm, jax.jit(algorithm.update), state


def updated(drawn):
    _, update, state = agent()
    return state, *update(state, drawn, KEY)


def test_losses_and_priorities_are_those_computed_by_hand():
    drawn = draw_rows()
    rows = drawn.rows
    weight = np.linspace(0.1, 1.0, 8).astype(np.float32)
    state, after, metrics, priorities = updated(drawn._replace(weight=weight))
    next_action = np.tanh(policy_by_hand(state.target_policy, rows.next_obs))
    next_value = critics_by_hand(state.target_critics, rows.next_obs, next_action)[0]
    target = returns_by_hand(rows, next_value, 0.9)
    error = critics_by_hand(state.critics.params, rows.obs, to_unit(rows.action))[0] - target
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * np.mean(weight * error**2), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.abs(error), rtol=1e-4, atol=1e-5)
    # The policy is judged by the critic that was just trained.
    action = np.tanh(policy_by_hand(state.policy.params, rows.obs))
    value = critics_by_hand(after.critics.params, rows.obs, action)[0]
    np.testing.assert_allclose(metrics["policy_loss"], -np.mean(weight * value), rtol=1e-4)


def test_target_networks_go_a_part_tau_of_the_way():
    state, after, _, _ = updated(draw_rows())
    for old, new, target in (
        (state.target_critics, after.critics.params, after.target_critics),
        (state.target_policy, after.policy.params, after.target_policy),
    ):
        expected = jax.tree.map(lambda o, n: 0.9 * np.asarray(o) + 0.1 * np.asarray(n), old, new)
        jax.tree.map(lambda e, t: np.testing.assert_allclose(t, e, atol=1e-6), expected, target)
        assert not np.allclose(jax.tree.leaves(old)[0], jax.tree.leaves(new)[0])


def test_a_row_of_weight_0_changes_nothing_whatever_it_holds():
    seven = with_bad_row(jax.tree.map(lambda x: x[:7], draw_rows()))
    _, *left_out, _ = updated(draw_rows()._replace(weight=seven.weight))
    _, *nothing, priorities = updated(seven)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((nothing, priorities)))
    jax.tree.map(np.testing.assert_array_equal, left_out, nothing)


def test_before_the_first_update_actions_are_uniform_in_the_box():
    algorithm, _, state = agent()
    obs = np.ones((2000, 3), np.float32)
    action, _, _ = algorithm.act(algorithm.params(state), (), look(obs), False)
    unit = to_unit(action)
    assert action.shape == (2000, 2)
    assert np.all(np.abs(unit) <= 1)
    np.testing.assert_allclose(unit.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(unit.var(0), 1 / 3, atol=0.02)


def test_noise_is_in_units_of_half_the_range_and_ends_at_the_bounds():
    algorithm, _, state = agent()
    params = algorithm.params(state._replace(updates=jnp.int32(1)))
    obs = np.ones((2000, 3), np.float32)
    middle = MIDDLE + REACH * np.tanh(policy_by_hand(state.policy.params, obs))
    action = np.asarray(algorithm.act(params, (), look(obs), False)[0])
    np.testing.assert_allclose((action - middle).std(0), 0.2 * REACH, rtol=0.05)
    for quiet in (
        algorithm.act(params, (), look(obs, exploration=0.0), False),
        algorithm.act(params, (), look(obs), True),
    ):
        np.testing.assert_allclose(quiet[0], middle, rtol=1e-5)
    wild = np.asarray(algorithm.act(params, (), look(obs, exploration=1e6), False)[0])
    assert set(np.unique(wild[:, 1])) == {0.0, 10.0}


def test_rows_spread_over_devices_give_the_same_gradients():
    algorithm, update, state = agent()
    alone = update(state, draw_rows(), KEY)[0]
    together = updates_over_devices(algorithm, state, draw_rows(), KEY, devices=4)
    # Adam's first moment is a tenth of the gradient; its first step is all sign, also of mere rounding.
    for part in ("critics", "policy"):
        moments = getattr(alone, part).optimizer.mu, getattr(together, part).optimizer.mu
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *moments)


def test_the_policy_of_a_linear_quadratic_task_is_the_one_of_its_riccati_equation():
    config = DDPGConfig(gamma=0.9, tau=0.05, learning_rate=3e-3)
    algorithm, state = start(ddpg, config, LINEAR, hidden=(32, 32), activation="tanh")
    state, _ = train_on(draw_linear, algorithm, state, updates=2000, rows=128)
    obs = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    action = algorithm.act(algorithm.params(state), (), look(obs), True)[0]
    assert 0.8 < best_gain() < 0.85
    assert np.mean(np.abs(action + best_gain() * obs)) < 0.08


@pytest.mark.parametrize(
    ("action", "says"),
    [(Discrete(3), "needs continuous actions"), (Box((1,), (-np.inf,), (1.0,)), "needs actions with finite bounds")],
)
def test_other_actions_are_refused_in_one_line(action, says):
    with pytest.raises(ConfigError, match=says) as refused:
        start(ddpg, CONFIG, EnvSpec(Array((3,)), action))
    assert "\n" not in str(refused.value)


def test_actions_of_any_shape_and_a_component_that_cannot_move():
    spec = EnvSpec(SPEC.observation, Box((2, 1), (-1.0, 4.0), (3.0, 4.0)))
    algorithm, state = start(ddpg, CONFIG, spec)
    drawn = draw_rows()
    rows = drawn.rows._replace(action=np.stack([drawn.rows.action[:, :1], np.full((8, 1), 4.0, np.float32)], axis=1))
    after, _, _ = jax.jit(algorithm.update)(state, drawn._replace(rows=rows), KEY)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(after))
    action = algorithm.act(algorithm.params(after), (), look(rows.obs), False)[0]
    assert action.shape == (8, 2, 1)
    assert np.all(np.asarray(action)[:, 1] == 4.0)
