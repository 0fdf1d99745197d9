"""A fused run over several devices: how many are chosen, and that it goes on bit for bit from what was saved."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import ppo
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.launch.plan import make_plan
from podium.workers.fused import Fused

CONFIG = PPOConfig(fragment_length=16, minibatch_size=64, num_epochs=16, grad_norm_of="each")
SMALL = Experiment(
    algorithm=CONFIG,
    env=EnvConfig("podium:Catch-v0", num_envs=16),
    network=NetworkConfig(hidden=(16,)),
    topology=TopologyConfig(dispatch=1),
)


def test_small_minibatches_get_a_device_for_the_policy_and_one_for_the_value() -> None:
    assert make_plan(SMALL).devices == 2


def test_networks_that_share_something_cannot_be_clipped_each_by_itself() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.grad_norm_of = 'each': policy and value share parameters here"):
        make_plan(replace(SMALL, network=NetworkConfig(memory="gru")))


def test_networks_that_are_clipped_together_get_one_device_for_small_minibatches() -> None:
    assert make_plan(replace(SMALL, algorithm=replace(CONFIG, grad_norm_of="all"))).devices == 1


def test_an_update_that_the_policy_can_stop_gets_one_device_for_small_minibatches() -> None:
    assert make_plan(replace(SMALL, algorithm=replace(CONFIG, kl_stop=0.1))).devices == 1


def test_an_update_of_little_work_gets_one_device() -> None:
    assert make_plan(replace(SMALL, algorithm=replace(CONFIG, num_epochs=2))).devices == 1


def test_a_run_on_two_devices_goes_on_bit_for_bit_from_what_was_saved() -> None:
    env = toy.make_env("Catch-v0", {})
    algorithm = ppo.make(CONFIG, SMALL, env.spec)
    fused = Fused(algorithm, vectorize(env), SMALL, jax.local_devices()[:2])
    state = fused.place(fused.init())
    state, _ = fused.dispatch(state, 10**9)
    saved = jax.device_get(state)
    ends = []
    for start in (state, fused.place(saved)):
        for _ in range(2):
            start, _ = fused.dispatch(start, 10**9)
        ends.append(jax.device_get(start))
    for a, b in zip(jax.tree.leaves(ends[0]), jax.tree.leaves(ends[1]), strict=True):
        assert np.array_equal(_bits(a), _bits(b))


def _bits(x: jax.Array) -> np.ndarray:
    plain = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return np.atleast_1d(np.asarray(plain)).view(np.uint8)
