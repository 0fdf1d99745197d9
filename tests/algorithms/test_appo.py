"""APPO: PPO where the actor's policy is the learner's, and V-trace's targets where it is an older one."""

import jax
import numpy as np

from algorithms import toy_runs
from algorithms.toy_runs import SPEC, T, assert_close, one_update, random_fragment, run
from podium.core.algorithm_configs import APPOConfig, PPOConfig
from podium.networks import network as networks
from podium.ops.vtrace import vtrace

OPTIONS = {"fragment_length": 8, "minibatch_size": 64, "num_epochs": 2, "gamma": 0.9, "gae_lambda": 0.8}


def test_on_policy_it_is_ppo():
    ours, theirs = run("Catch-v0", APPOConfig(**OPTIONS), 2)[0], run("Catch-v0", PPOConfig(**OPTIONS), 2)[0]
    assert_close(ours.train.params, theirs.train.params)


def test_values_and_surrogate_take_what_vtrace_gives_for_an_older_policy():
    config = toy_runs.small(
        APPOConfig(fragment_length=T, minibatch_size=32, num_epochs=1, gamma=0.9, normalize_advantages=False)
    )
    fragment = random_fragment()
    state, _, metrics = one_update(config, fragment)
    network = networks.make(config.network, SPEC, 2)
    logits, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    chosen = np.take_along_axis(jax.nn.log_softmax(logits)[:-1], fragment.action[..., None], -1)[..., 0]
    log_ratio = chosen - fragment.extras["log_prob"]
    found = vtrace(log_ratio, fragment.reward, value, fragment.terminated, fragment.truncated, 0.9, 0.95)
    ratio, valid = np.exp(log_ratio), fragment.valid
    surrogate = np.minimum(ratio * found.advantage, np.clip(ratio, 0.8, 1.2) * found.advantage)
    np.testing.assert_allclose(metrics["policy_loss"], -surrogate[valid].mean(), rtol=1e-4)
    np.testing.assert_allclose(
        metrics["value_loss"], 0.5 * (np.asarray(found.target - value[:-1])[valid] ** 2).mean(), rtol=1e-4
    )


def test_a_final_observation_that_is_not_a_number_reaches_nothing():
    fragment = random_fragment()
    obs = fragment.obs.copy()
    obs[1, 0] = np.nan  # row 0 terminated at t=0
    config = toy_runs.small(APPOConfig(fragment_length=T, minibatch_size=32, num_epochs=1))
    _, state, metrics = one_update(config, fragment._replace(obs=obs))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))


def test_it_reaches_the_optimum_of_catch():
    config = APPOConfig(
        fragment_length=16, learning_rate=1e-3, minibatch_size=64, num_epochs=4, gamma=0.9, entropy_coef=0.01
    )
    _, last_return = run("Catch-v0", config, 4, updates=100)
    assert last_return >= 0.95
