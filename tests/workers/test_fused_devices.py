"""A fused run over several devices: how many are chosen, and that it goes on bit for bit from what was saved."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import dqn, ppo
from podium.core.algorithm_configs import DQNConfig, PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.launch.plan import make_plan
from podium.workers.fused import Fused, FusedState

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
    _go_on_twice(fused, state)


def test_a_replay_buffer_on_two_devices_feeds_one_learner_and_goes_on_bit_for_bit() -> None:
    """Everything that rows can be: sequences with memory, n-step targets, priorities."""
    more = {"n_step": 3, "burn_in": 2, "priority_exponent": 0.6, "update_ratio": 0.125}
    config = DQNConfig(fragment_length=8, batch_size=16, buffer_size=512, learning_starts=100, **more)
    memory = NetworkConfig(hidden=(8,), memory="gru", memory_size=8)
    experiment = replace(SMALL, algorithm=config, env=EnvConfig("podium:Memory-v0", num_envs=8), network=memory)
    env = toy.make_env("Memory-v0", {})
    fused = Fused(dqn.make(config, experiment, env.spec), vectorize(env), experiment, jax.local_devices()[:2])
    state, steps, updates = fused.place(fused.init()), [], []
    for _ in range(5):
        state, dispatched = fused.dispatch(state, 10**9)
        ((valid, metrics, _),) = fused.rows_of(dispatched)
        steps.append(valid)
        updates.append(metrics["gradient_updates"])
    began = next(i for i in range(5) if sum(steps[: i + 1]) >= 100)
    assert updates[:began] == [0] * began
    assert sum(updates) == sum(steps[began:]) // 8 == state.train.updates
    for leaf in jax.tree.leaves(state.train):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        assert np.array_equal(first, second), "every device has the same networks"
    store = jax.device_get(state.store)
    assert store.added.tolist() == [5, 5]
    assert not np.array_equal(store.fragments.obs[0], store.fragments.obs[1]), "each has rows of its own"
    _go_on_twice(fused, state)


def _go_on_twice(fused: Fused, state: FusedState) -> None:
    """From here, and from what a checkpoint would hold: both end in the same bits."""
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
