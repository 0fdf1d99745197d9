"""IMPALA against known answers: its loss by hand, equal to A2C on-policy, old policies, pixels, memory, Catch."""

from collections import deque
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import toy_runs
from algorithms.toy_runs import SPEC, B, T, assert_close, one_update, random_fragment, run
from podium.algorithms import a2c, registry
from podium.core.algorithm_configs import A2CConfig, IMPALAConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Discrete, EnvSpec
from podium.core.types import ActInput
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.networks import network as networks
from podium.ops.vtrace import vtrace
from podium.workers import rollout


def small(**algorithm) -> Experiment:
    return toy_runs.small(IMPALAConfig(fragment_length=T, **algorithm))


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_the_one_computed_by_hand(normalize):
    config = small(entropy_coef=0.01, gamma=0.9, clip_rho=1.2, clip_c=0.9, normalize_advantages=normalize)
    fragment = random_fragment()
    state, _, metrics = one_update(config, fragment)
    network = networks.make(config.network, SPEC, 2)
    logits, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    logits, value = np.asarray(logits, np.float64), np.asarray(value, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs[:-1], fragment.action[..., None], -1)[..., 0]
    ratio = np.exp(chosen - fragment.extras["log_prob"])
    assert (ratio > 1.2).any()
    assert (ratio < 0.9).any()
    target, advantage = np.zeros((T, B)), np.zeros((T, B))
    for row in range(B):
        error = 0.0
        for t in reversed(range(T)):
            alive = 1.0 - fragment.terminated[t, row]
            later = 0.9 * error * alive * (1.0 - fragment.truncated[t, row])
            one_step = fragment.reward[t, row] + 0.9 * alive * value[t + 1, row] - value[t, row]
            advantage[t, row] = one_step + later
            error = min(1.2, ratio[t, row]) * one_step + min(0.9, ratio[t, row]) * later
            target[t, row] = value[t, row] + error
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)[:-1]
    valid, rho = fragment.valid, np.minimum(1.2, ratio)
    if normalize:
        advantage = (advantage - advantage[valid].mean()) / advantage[valid].std()
    policy_loss, value_loss = (
        -(rho * advantage * chosen)[valid].mean(),
        0.5 * ((target - value[:-1])[valid] ** 2).mean(),
    )
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(metrics["value_loss"], value_loss, rtol=1e-5)
    np.testing.assert_allclose(
        metrics["loss"], policy_loss + 0.5 * value_loss - 0.01 * entropy[valid].mean(), rtol=1e-5
    )
    kl = (ratio - 1 - np.log(ratio))[valid].mean()
    np.testing.assert_allclose(metrics["approx_kl"], kl, rtol=1e-4)


def test_on_policy_it_is_a2c():
    options = {"fragment_length": 8, "gamma": 0.9, "gae_lambda": 0.8, "normalize_observations": True}
    ours, theirs = run("Catch-v0", IMPALAConfig(**options), 3)[0], run("Catch-v0", A2CConfig(**options), 3)[0]
    assert_close(ours.train.params, theirs.train.params)


def test_a_second_pass_has_the_advantages_of_the_first_weighed_by_the_policy_of_now():
    config, fragment = small(gamma=0.9, learning_rate=0.05), random_fragment()
    before, once, first = one_update(config, fragment)
    _, twice, both = one_update(small(gamma=0.9, learning_rate=0.05, num_epochs=2), fragment)
    network = networks.make(config.network, SPEC, 2)

    def judge(state):
        logits, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), fragment.action[..., None], -1)[..., 0]
        return value, log_prob, log_prob - fragment.extras["log_prob"]

    def estimate(value, log_ratio):
        ends = fragment.terminated, fragment.truncated
        return vtrace(log_ratio, fragment.reward, value, *ends, 0.9, 1.0, 1.0, 1.0).advantage

    value, _, log_ratio = judge(before)
    value_now, log_prob_now, log_ratio_now = judge(once)
    found, anew = estimate(value, log_ratio), estimate(value_now, log_ratio_now)
    gain = jnp.minimum(1.0, jnp.exp(log_ratio_now)) * log_prob_now
    second = 2 * both["policy_loss"] - first["policy_loss"]  # the mean of two steps is reported
    np.testing.assert_allclose(second, -(gain * found)[fragment.valid].mean(), rtol=1e-4)
    assert abs(second + (gain * anew)[fragment.valid].mean()) > 1e-3
    assert np.array_equal(twice.steps, once.steps), "steps are counted once, however often they are gone over"


@pytest.mark.parametrize(("memory", "shape"), [("none", (1, 2 * T)), ("gru", (T, 2))])
def test_minibatches_are_single_steps_or_with_memory_whole_sequences_each_taken_once_a_pass(memory, shape, monkeypatch):
    taken = []
    step = a2c.A2C.gradient_step

    def spy(self, part, state, batch, found, axis):
        jax.debug.callback(lambda rewards: taken.append(np.asarray(rewards)), batch.reward)
        return step(self, part, state, batch, found, axis)

    monkeypatch.setattr(a2c.A2C, "gradient_step", spy)
    config = small(num_epochs=2, minibatch_size=2 * T)
    config = replace(config, network=NetworkConfig(hidden=(8,), memory=memory, memory_size=4))
    start = jnp.ones((B, 4)) if memory == "gru" else ()
    fragment = random_fragment()._replace(memory=start)
    jax.block_until_ready(one_update(config, fragment))
    jax.effects_barrier()
    assert [rewards.shape for rewards in taken] == [shape] * 8
    for first in (0, 4):
        rewards = np.concatenate(taken[first : first + 4], axis=1)
        expected = fragment.reward if memory == "gru" else fragment.reward.reshape(1, -1)
        np.testing.assert_array_equal(np.sort(rewards[0]), np.sort(expected[0]))
    assert not np.array_equal(np.concatenate(taken[:4], 1), np.concatenate(taken[4:], 1)), "drawn anew in each pass"


def test_eight_devices_give_the_parameters_of_one_in_minibatches():
    config = IMPALAConfig(
        fragment_length=8, num_epochs=2, minibatch_size=64, normalize_observations=True, normalize_advantages=True
    )
    one, _ = run("Catch-v0", config, 2, hidden=(8,))
    eight, _ = run("Catch-v0", config, 2, devices=8, hidden=(8,))
    assert_close(one.train, eight.train)


@pytest.mark.parametrize("size", [6, 12, 64])
def test_a_minibatch_that_does_not_divide_the_steps_is_refused(size):
    with pytest.raises(ConfigError, match=rf"minibatch_size = {size}: must divide fragment_length x num_envs = 32"):
        registry.make(small(minibatch_size=size), SPEC)


def test_a_minibatch_that_is_not_of_whole_sequences_is_refused_with_memory():
    config = small(minibatch_size=2)
    registry.make(config, SPEC)
    with pytest.raises(ConfigError, match=r"minibatch_size = 2: with a recurrent .* multiple of .*fragment_length = 4"):
        registry.make(replace(config, network=NetworkConfig(hidden=(8,), memory="gru", memory_size=4)), SPEC)


def test_nothing_of_a_reset_row_reaches_a_parameter():
    config, fragment = small(normalize_advantages=True), random_fragment()
    obs = fragment.obs.copy()
    obs[1, 0] = np.nan  # row 0 terminated at t=0
    log_prob = np.where(fragment.valid, fragment.extras["log_prob"], np.nan).astype(np.float32)
    dirty = fragment._replace(obs=obs, extras={"log_prob": log_prob})
    (_, state, _), (_, other, _) = one_update(config, fragment), one_update(config, dirty)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(other))
    assert_close(state, other)


def test_what_a_policy_would_hardly_do_any_more_weighs_hardly_anything():
    fragment = random_fragment()
    certain = np.zeros_like(fragment.extras["log_prob"])  # the actor chose with probability 1, the learner with 1/2
    half = one_update(small(), fragment._replace(extras={"log_prob": certain}))[2]
    impossible = one_update(small(), fragment._replace(extras={"log_prob": certain + 20}))[2]
    assert abs(half["policy_loss"]) > 1e-3
    assert abs(impossible["policy_loss"]) < 1e-7
    assert impossible["value_loss"] < 1e-12


def test_it_reaches_the_optimum_of_catch():
    config = IMPALAConfig(fragment_length=16, learning_rate=5e-3, gamma=0.9, entropy_coef=0.001)
    _, last_return = run("Catch-v0", config, 8, updates=100)
    assert last_return > 0.97  # its exploration misses now and then


@pytest.mark.parametrize(("config", "learned"), [(IMPALAConfig, 0), (A2CConfig, 1)], ids=["impala", "a2c"])
def test_from_an_actor_that_never_learns_it_learns_the_best_action_and_a2c_one_that_is_common(config, learned):
    """A bandit that pays 1, 0.5 or -3, of whose 32 steps the actor takes 3, 26 and 3."""
    action = np.repeat([0, 1, 2], [3, 26, 3]).reshape(T, B)
    flags = np.zeros((T, B), bool)
    fragment = random_fragment()._replace(
        obs=np.ones((T + 1, B, 3), np.float32),
        first=np.zeros((T + 1, B), bool),
        action=action.astype(np.int32),
        extras={"log_prob": np.log(np.array([3, 26, 3], np.float32) / 32)[action]},
        reward=np.array([1.0, 0.5, -3.0], np.float32)[action],
        terminated=flags,
        truncated=flags,
        valid=~flags,
    )
    spec = EnvSpec(Array((3,)), Discrete(3))
    experiment = toy_runs.small(config(fragment_length=T, learning_rate=1e-2, gamma=0.0))
    algorithm, network = registry.make(experiment, spec), networks.make(experiment.network, spec, 3)
    state = jax.jit(lambda key: algorithm.init(key, spec, experiment.hyper()))(jax.random.key(0))
    update = jax.jit(algorithm.update)
    for _ in range(150):
        state, _, _ = update(state, fragment, jax.random.key(1))
    logits, _, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    assert jax.nn.softmax(logits[0, 0])[learned] > 0.7


def test_it_reaches_the_optimum_of_catch_by_fragments_of_a_policy_32_updates_old():
    config = IMPALAConfig(fragment_length=16, learning_rate=5e-3, gamma=0.95, entropy_coef=0.01)
    experiment = Experiment(config, EnvConfig("podium:Catch-v0", num_envs=16), NetworkConfig(hidden=(32,)))
    catch, key = toy.make_env("Catch-v0", {}), jax.random.key(0)
    algorithm, env = registry.make(experiment, catch.spec), vectorize(catch)
    state = jax.jit(lambda key: algorithm.init(key, catch.spec, experiment.hyper()))(key)
    params = deque([algorithm.params(state)] * 33, maxlen=33)
    rows = jax.jit(lambda params: rollout.start(algorithm, env, params, key, 16))(params[0])
    collect = jax.jit(lambda params, rows, number: rollout.collect(algorithm, env, params, rows, key, number, 16))
    update, last = jax.jit(algorithm.update), []
    for number in range(600):
        rows, fragment, episodes = collect(params[0], rows, number)
        state, _, _ = update(state, fragment, key)
        params.append(algorithm.params(state))
        if number >= 500:
            last.append(np.asarray(episodes.returns)[np.asarray(episodes.over)])
    assert np.concatenate(last).mean() > 0.9


def test_with_an_lstm_it_recalls_a_cue():
    config = IMPALAConfig(fragment_length=12, learning_rate=5e-3, gamma=0.95, entropy_coef=0.01)
    _, last_return = run("Memory-v0", config, 6, updates=100, hidden=(16,), memory="lstm", memory_size=16)
    assert last_return > 0.9


@pytest.mark.parametrize("vision", ["shallow", "nature", "resnet"])
def test_it_learns_from_pixels_that_stay_bytes_until_the_network(vision):
    spec = EnvSpec(Array((8, 8, 1), "uint8"), Discrete(2))
    config = replace(small(learning_rate=1e-3, gamma=0.0), network=NetworkConfig(hidden=(), vision=vision))
    algorithm = registry.make(config, spec)
    state = jax.jit(lambda key: algorithm.init(key, spec, config.hyper()))(jax.random.key(0))
    obs = jax.random.randint(jax.random.key(1), (T + 1, B, 8, 8, 1), 0, 256).astype(jnp.uint8)
    params, keys = algorithm.params(state), jax.random.split(jax.random.key(2), B)
    inputs = ActInput(obs[0], np.zeros(B, bool), None, keys, np.ones(B, np.float32))
    _, extras, _ = jax.jit(algorithm.act, static_argnums=3)(params, (), inputs, False)
    assert extras["log_prob"].shape == (B,)
    # Always paid for action 1, which becomes the likelier one.
    fragment = random_fragment()
    paid = fragment._replace(
        obs=obs, reward=fragment.action.astype(np.float32), extras={"log_prob": np.full((T, B), np.log(0.5), "f4")}
    )
    update = jax.jit(algorithm.update)
    for _ in range(10):
        state, metrics, _ = update(state, paid, jax.random.key(3))
    assert np.isfinite(metrics["loss"])
    greedy, _, _ = jax.jit(algorithm.act, static_argnums=3)(algorithm.params(state), (), inputs, True)
    assert greedy.mean() > 0.7


def test_a_trace_clipped_less_than_its_difference_is_refused():
    with pytest.raises(
        ConfigError, match=r"algorithm.clip_c = 2.0: must be more than 0 and at most algorithm.clip_rho"
    ):
        IMPALAConfig(clip_c=2.0)
