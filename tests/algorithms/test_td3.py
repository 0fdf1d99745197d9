"""TD3 against known answers: twin targets with noise by hand, the delay of the policy, a linear-quadratic task."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_rows import (
    LINEAR,
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

from podium.algorithms import td3
from podium.core.algorithm_configs import TD3Config
from podium.core.errors import ConfigError

CONFIG = TD3Config(gamma=0.9, learning_rate=1e-2, target_noise=0.4, target_noise_clip=0.5, policy_delay=1)
KEY = jax.random.key(3)


@cache
def agent():
    """The algorithm, its update as compiled once, and its first state."""
    algorithm, state = start(td3, CONFIG)
    return algorithm, jax.jit(algorithm.update), state


def without_noise(state):
    return state._replace(hyper=state.hyper | {"target_noise": jnp.float32(0)})


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_critics_loss_is_the_one_of_the_lesser_twin_at_a_noisy_action():
    drawn = draw_rows()
    rows = drawn.rows
    _, update, state = agent()
    _, metrics, priorities = update(state, drawn, KEY)
    noise = np.clip(0.4 * np.asarray(jax.random.normal(KEY, (2, 8))), -0.5, 0.5).T
    assert np.any(np.abs(noise) == 0.5)
    next_action = np.clip(np.tanh(policy_by_hand(state.target_policy, rows.next_obs)) + noise, -1, 1)
    next_values = critics_by_hand(state.target_critics, rows.next_obs, next_action)
    assert len(set(next_values.argmin(axis=0))) == 2  # each twin is the lesser one somewhere
    target = returns_by_hand(rows, next_values.min(axis=0), 0.9)
    errors = critics_by_hand(state.critics.params, rows.obs, to_unit(rows.action)) - target
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * np.sum(np.mean(errors**2, axis=1)), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.mean(np.abs(errors), axis=0), rtol=1e-4, atol=1e-5)


def test_policy_and_targets_move_at_every_third_update_only():
    algorithm, state = start(td3, TD3Config(policy_delay=3))
    update = jax.jit(algorithm.update)
    moved = []
    for number in range(7):
        before = state
        state, metrics, _ = update(state, draw_rows(seed=number), jax.random.key(number))
        moved.append(not equal(before.policy.params, state.policy.params))
        assert moved[-1] != equal(before.target_critics, state.target_critics)
        assert moved[-1] != equal(before.target_policy, state.target_policy)
        assert not equal(before.critics.params, state.critics.params)
        assert metrics["policy_loss"] == state.policy_loss
    assert moved == [False, False, True, False, False, True, False]
    assert state.updates == 7


def test_a_row_of_weight_0_changes_nothing_whatever_it_holds():
    _, update, state = agent()
    seven = with_bad_row(jax.tree.map(lambda x: x[:7], draw_rows()))
    eight = draw_rows()._replace(weight=seven.weight)
    left_out, nothing = update(state, eight, KEY), update(state, seven, KEY)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(nothing))
    assert equal(left_out[:2], nothing[:2])


def test_rows_spread_over_devices_give_the_same_gradients():
    # The noise of a row depends on how many there are on its device.
    algorithm, update, state = agent()
    state, drawn = without_noise(state), draw_rows()
    alone = update(state, drawn, KEY)[0]
    together = updates_over_devices(algorithm, state, drawn, KEY, devices=2)
    for part in ("critics", "policy"):
        moments = getattr(alone, part).optimizer.mu, getattr(together, part).optimizer.mu
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *moments)


def test_the_policy_of_a_linear_quadratic_task_is_the_one_of_its_riccati_equation():
    # Noise of the target's action adds the same to a quadratic value everywhere: the best policy stays what it is.
    config = TD3Config(gamma=0.9, tau=0.05, learning_rate=3e-3, target_noise=0.1, target_noise_clip=0.2)
    algorithm, state = start(td3, config, LINEAR, hidden=(32, 32), activation="tanh")
    state, _ = train_on(draw_linear, algorithm, state, updates=3000, rows=128)
    obs = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    action = algorithm.act(algorithm.params(state), (), look(obs), True)[0]
    assert np.mean(np.abs(action + best_gain() * obs)) < 0.08


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.policy_delay = 0"):
        TD3Config(policy_delay=0)
