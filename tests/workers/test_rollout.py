"""Fragments of JAX environments: what policies are told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import dqn
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.workers import rollout


@pytest.mark.parametrize("first", [0, 4])
def test_environments_explore_by_their_number_in_the_run_whichever_device_they_are_on(first: int) -> None:
    """spread^(i / (N - 1)) of 4 of 8 environments: those of the first of two devices, or of the second."""
    config = DQNConfig(fragment_length=3, batch_size=8, buffer_size=64, learning_starts=0, exploration_spread=0.01)
    experiment = Experiment(config, EnvConfig("podium:Catch-v0", num_envs=8), NetworkConfig(hidden=(4,)))
    toy_env, key = toy.make_env("Catch-v0", {}), jax.random.key(0)
    env = vectorize(toy_env)

    def act(params, memory, inputs, greedy):
        return jnp.zeros(4, jnp.int32), {"exploration": inputs.exploration}, memory

    algorithm = dqn.make(config, experiment, toy_env.spec)._replace(act=act)
    rows = jax.jit(lambda: rollout.start(algorithm, env, (), key, num_envs=4))()
    rows = rows._replace(row_id=rows.row_id + first)
    collect = jax.jit(lambda rows: rollout.collect(algorithm, env, (), rows, key, 0, num_envs=8))
    _, fragment, _ = collect(rows)
    told = 0.01 ** ((first + np.arange(4)) / 7)
    np.testing.assert_allclose(fragment.extras["exploration"], [told] * 3, rtol=1e-5)
