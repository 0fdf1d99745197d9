"""A2C against known answers: its loss by hand, what reset rows may do, devices, memory, and known optima."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import toy_runs
from algorithms.toy_runs import SPEC, B, T, assert_close, one_update, random_fragment, run
from podium.algorithms import a2c, minibatches, registry
from podium.algorithms.optimizers import part_done
from podium.core.algorithm_configs import A2CConfig, PPOConfig
from podium.core.config import Experiment, NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, EnvSpec
from podium.networks import network as networks


def small(**algorithm) -> Experiment:
    return toy_runs.small(A2CConfig(fragment_length=T, **algorithm))


def test_the_loss_is_the_one_computed_by_hand():
    config = small(entropy_coef=0.01, gamma=0.9, gae_lambda=0.8)
    fragment = random_fragment()
    state, _, metrics = one_update(config, fragment)
    network = networks.make(config.network, SPEC, 2)
    logits, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    logits, value = np.asarray(logits, np.float64), np.asarray(value, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    advantage = np.zeros((T, B))
    for row in range(B):
        later = 0.0
        for t in reversed(range(T)):
            alive = 1.0 - fragment.terminated[t, row]
            goes_on = alive * (1.0 - fragment.truncated[t, row])
            delta = fragment.reward[t, row] + 0.9 * alive * value[t + 1, row] - value[t, row]
            later = advantage[t, row] = delta + 0.9 * 0.8 * goes_on * later
    chosen = np.take_along_axis(log_probs[:-1], fragment.action[..., None], -1)[..., 0]
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)[:-1]
    valid = fragment.valid
    expected = -(advantage * chosen)[valid].mean()
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-5)
    expected += 0.5 * 0.5 * (advantage[valid] ** 2).mean() - 0.01 * entropy[valid].mean()
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    # The error of the value is the advantage, and what it aims at is their sum.
    explained = 1 - advantage[valid].var() / (advantage + value[:-1])[valid].var()
    np.testing.assert_allclose(metrics["explained_variance"], explained, rtol=1e-3)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_nothing_of_a_reset_row_reaches_a_parameter(memory):
    config = small(normalize_observations=True, normalize_rewards=True)
    config = replace(config, network=NetworkConfig(hidden=(8,), memory=memory, memory_size=4))
    start = jnp.ones((B, 4)) if memory == "gru" else ()
    fragment = random_fragment()._replace(memory=start)
    fragment.valid[0, 2], fragment.first[1, 2] = False, True  # terminated with the last step of the fragment before
    reset = ~fragment.valid
    obs = fragment.obs.copy()
    obs[1, 0] = obs[0, 2] = np.nan  # row 0 terminated at t=0: this is what its simulator ended in
    changed = fragment._replace(
        obs=obs,
        action=np.where(reset, 1 - fragment.action, fragment.action),
        reward=np.where(reset, np.nan, fragment.reward).astype(np.float32),
        discounted=np.where(reset, 1e6, fragment.discounted).astype(np.float32),
        extras={"log_prob": np.where(reset, np.nan, fragment.extras["log_prob"]).astype(np.float32)},
    )
    (_, state, metrics), (_, other, same) = one_update(config, fragment), one_update(config, changed)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((other, same)))
    assert_close((state, metrics), (other, same))


def test_a_step_that_is_too_old_is_not_trained_on_but_the_returns_before_it_know_its_reward():
    fragment = random_fragment()
    valid, reward = fragment.valid.copy(), fragment.reward.copy()
    valid[2, 2] = False  # amid an episode: no reset row
    old = fragment._replace(valid=valid)
    other_action = fragment.action.copy()
    other_action[2, 2] = 1 - other_action[2, 2]
    reward[2, 2] += 1.0
    loss = one_update(small(), old)[2]["policy_loss"]
    assert one_update(small(), old._replace(action=other_action))[2]["policy_loss"] == loss
    assert abs(one_update(small(), old._replace(reward=reward))[2]["policy_loss"] - loss) > 1e-4


def test_the_final_observation_of_a_truncated_episode_is_bootstrapped_from():
    fragment = random_fragment()
    obs = fragment.obs.copy()
    obs[2, 1] += 1.0  # row 1 was truncated at t=1
    moved = one_update(small(), fragment._replace(obs=obs))[2]["policy_loss"]
    assert abs(moved - one_update(small(), fragment)[2]["policy_loss"]) > 1e-4


def test_a_fragment_of_reset_rows_only_changes_no_parameter():
    nothing = random_fragment()._replace(valid=np.zeros((T, B), bool))
    before, after, metrics = one_update(small(), nothing)
    assert_close(before.params, after.params)
    assert all(np.isfinite(value) for value in metrics.values())


def test_gradients_are_scaled_down_to_the_norm_and_followed_by_adam():
    before, after, metrics = one_update(small(max_grad_norm=1e-3, learning_rate=0.01), random_fragment())
    # After one step Adam's first moments are a tenth of the gradient, whose norm was more than the limit.
    np.testing.assert_allclose(10 * optax.tree.norm(after.optimizer.mu), 1e-3, rtol=1e-2)
    assert float(metrics["learning_rate"]) == pytest.approx(0.01)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.params.network, after.params.network)
    assert 0.005 < max(jax.tree.leaves(moved)) <= 0.0101


@pytest.mark.parametrize("before", [2**30 + 1, 2**32 - 1])
@pytest.mark.parametrize("own", [A2CConfig(fragment_length=T), PPOConfig(fragment_length=T, minibatch_size=T * B)])
def test_the_steps_of_a_schedule_are_counted_exactly_beyond_a_billion(own: A2CConfig | PPOConfig, before: int):
    config, fragment = toy_runs.small(own), random_fragment()
    algorithm = registry.make(config, SPEC)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    state = state._replace(steps=jnp.asarray([before % 2**32, before // 2**32], jnp.uint32))
    after, _, _ = jax.jit(algorithm.update)(state, fragment, jax.random.key(0))
    low, high = (int(word) for word in after.steps)
    assert high * 2**32 + low == before + int(fragment.valid.sum())
    np.testing.assert_allclose(part_done(after.steps, 2**-33), before / 2**33, rtol=1e-6)


def test_a_linear_schedule_counts_valid_steps_and_ends_at_zero():
    config = small(schedule="linear", learning_rate=1.0)
    fragment = random_fragment()
    steps = int(fragment.valid.sum())
    config = replace(config, limits=replace(config.limits, total_steps=2 * steps))
    algorithm = registry.make(config, SPEC)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    update, rates = jax.jit(algorithm.update), []
    for _ in range(3):
        state, metrics, _ = update(state, fragment, jax.random.key(0))
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [1.0, 0.5, 0.0], atol=1e-6)


def test_eight_devices_give_the_parameters_of_one():
    config = A2CConfig(fragment_length=8, normalize_observations=True, normalize_rewards=True)
    network = {"hidden": (8,), "memory": "gru", "memory_size": 8}
    one, _ = run("Memory-v0", config, 2, **network)
    eight, _ = run("Memory-v0", config, 2, devices=8, **network)
    assert_close(one.train, eight.train)


def test_a_large_fragment_computed_in_pieces_gives_the_same(monkeypatch):
    config, fragment = small(entropy_coef=0.01), random_fragment()
    whole = one_update(config, fragment)
    in_pieces = minibatches.sum_over_chunks
    monkeypatch.setattr(a2c.minibatches, "sum_over_chunks", lambda f, rows, chunk: in_pieces(f, rows, chunk=10))
    pieces = one_update(config, fragment)
    assert_close(whole, pieces)


@pytest.mark.parametrize(
    ("env", "optimum", "tolerance", "options"),
    [
        ("Masked-v0", 8.0, 0.01, {}),
        ("Target-v0", 0.0, 0.6, {"log_std": -1.0, "squash": True}),
        ("MultiTarget-v0", 1.0, 0.1, {}),
    ],
)
def test_it_finds_the_known_optimum_of_every_kind_of_action(env, optimum, tolerance, options):
    config = A2CConfig(fragment_length=16, learning_rate=5e-3, gamma=0.9, entropy_coef=0.001, **options)
    _, last_return = run(env, config, 8, updates=100)
    assert last_return >= optimum - tolerance


def test_with_memory_it_recalls_a_cue():
    config = A2CConfig(fragment_length=12, learning_rate=5e-3, gamma=0.95, entropy_coef=0.01)
    _, last_return = run("Memory-v0", config, 6, updates=100, hidden=(16,), memory="gru", memory_size=16)
    assert last_return > 0.9


def test_squash_without_bounds_is_refused_in_one_line():
    spec = EnvSpec(Array((3,)), Box((1,), (-np.inf,), (np.inf,)))
    with pytest.raises(ConfigError, match=r"algorithm.squash = true: needs continuous actions with finite bounds"):
        registry.make(small(squash=True), spec)
