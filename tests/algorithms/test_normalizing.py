"""Observations normalised for replay: by all that was put into the buffer, where they are drawn and where they act."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.control_rows import SPEC, draw_rows, experiment
from podium.algorithms import registry
from podium.core.algorithm_configs import DDPGConfig, DQNConfig, OffPolicyConfig, SACConfig, TD3Config
from podium.core.config import EnvConfig, Experiment, LimitsConfig, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Discrete, EnvSpec
from podium.core.types import ActInput, Fragment
from podium.envs.interface import JaxEnv, JaxStep
from podium.envs.jax_wrappers import vectorize
from podium.launch.plan import make_plan
from podium.workers.fused import Fused

MEAN, WIDTH = np.float32([5.0, -2.0, 100.0]), np.float32([0.1, 3.0, 20.0])


def make_fragment(seed: int = 0, steps: int = 6, rows: int = 4) -> Fragment:
    """Observations of mean MEAN and deviation WIDTH, a NaN where a row is not valid."""
    rng = np.random.default_rng(seed)
    obs = (MEAN + WIDTH * rng.normal(size=(steps + 1, rows, 3))).astype(np.float32)
    valid = np.ones((steps, rows), bool)
    valid[2, 1] = False
    obs[2, 1] = np.nan
    return Fragment(obs, *[None] * 8, valid, None, ())


@pytest.mark.parametrize("config", [SACConfig, TD3Config, DDPGConfig])
def test_acting_and_updating_are_those_of_normalised_observations(config: type[OffPolicyConfig]) -> None:
    plain, own = config(n_step=2), config(n_step=2, normalize_observations=True)
    algorithm, reference = (registry.make(experiment(c), SPEC) for c in (own, plain))
    state = algorithm.init(jax.random.key(0), SPEC, own.hyper())
    same = reference.init(jax.random.key(0), SPEC, plain.hyper())
    fragments = [make_fragment(seed) for seed in range(3)]
    for fragment in fragments:
        state = algorithm.observe(state, fragment)
    seen = np.concatenate([f.obs[:-1][f.valid] for f in fragments])
    mean, deviation = seen.mean(axis=0), seen.std(axis=0)
    np.testing.assert_allclose(state.observations.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(state.observations.var, deviation**2, rtol=1e-3)

    def by_hand(obs: np.ndarray) -> np.ndarray:
        return np.clip((obs - mean) / deviation, -10, 10).astype(np.float32)

    raw = MEAN + WIDTH * np.random.default_rng(9).normal(size=(5, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(3), 5)
    inputs = ActInput(raw, np.ones(5, bool), None, keys, np.ones(5, np.float32))
    action, _, _ = algorithm.act(algorithm.params(state), (), inputs, True)
    wanted, _, _ = reference.act(reference.params(same), (), inputs._replace(obs=by_hand(raw)), True)
    np.testing.assert_allclose(action, wanted, rtol=1e-3, atol=1e-4)

    drawn = draw_rows()
    rows = drawn.rows._replace(obs=MEAN + WIDTH * drawn.rows.obs, next_obs=MEAN + WIDTH * drawn.rows.next_obs)
    after, metrics, _ = jax.jit(algorithm.update)(state, drawn._replace(rows=rows), jax.random.key(2))
    rows = rows._replace(obs=by_hand(rows.obs), next_obs=by_hand(rows.next_obs))
    _, expected, _ = jax.jit(reference.update)(same, drawn._replace(rows=rows), jax.random.key(2))
    np.testing.assert_allclose(metrics["critic_loss"], expected["critic_loss"], rtol=1e-3)
    jax.tree.map(np.testing.assert_array_equal, after.observations, state.observations)


def make_sign(offset: float, scale: float) -> JaxEnv:
    """One step: name the sign of what is shown, which differs by little of much. Optimum 1.0, at random 0.5."""

    def draw(key):
        return jax.random.bernoulli(key).astype(jnp.int32)

    def look(sign):
        return jnp.array([offset + scale * (2.0 * sign - 1.0)], jnp.float32)

    def reset(key):
        sign = draw(key)
        return sign, look(sign)

    def step(state, action, key):
        right = (action == state).astype(jnp.float32)
        return state, JaxStep(look(state), right, jnp.ones((), bool), jnp.zeros((), bool))

    return JaxEnv(EnvSpec(Array((1,)), Discrete(2)), reset, step)


def train(normalized: bool) -> float:
    """The mean return of DQN's last episodes."""
    config = DQNConfig(
        fragment_length=8,
        batch_size=64,
        buffer_size=4096,
        learning_starts=256,
        update_ratio=0.25,
        learning_rate=3e-3,
        epsilon_decay=0.3,
        epsilon_end=0.0,
        normalize_observations=normalized,
    )
    whole = Experiment(
        algorithm=config,
        env=EnvConfig(num_envs=16),
        network=NetworkConfig(hidden=(16,)),
        topology=TopologyConfig(dispatch=30),
        limits=LimitsConfig(total_steps=3_840),
    )
    env = make_sign(offset=1000.0, scale=0.01)
    fused = Fused(registry.make(whole, env.spec), vectorize(env), whole, jax.local_devices()[:1])
    state, dispatched = fused.init(), None
    for _ in range(2):
        state, dispatched = fused.dispatch(state, 10**9)
    assert dispatched is not None
    returns = [episode[0] for _, _, episodes in fused.rows_of(dispatched) for episode in episodes]
    return float(np.mean(returns[-400:]))


def test_badly_scaled_observations_are_learned_from_and_not_without() -> None:
    assert train(normalized=True) > 0.95
    assert train(normalized=False) < 0.7


def test_replay_workers_and_statistics_of_the_buffer_are_refused_together() -> None:
    config = DQNConfig(fragment_length=8, batch_size=64, buffer_size=4096, normalize_observations=True)
    whole = Experiment(
        algorithm=config,
        env=EnvConfig("gymnasium:CartPole-v1", num_envs=4),
        topology=TopologyConfig(replay_workers=1, actors=1),
    )
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_observations = true: with replay workers"):
        make_plan(whole)
    assert make_plan(replace(whole, topology=TopologyConfig(replay_workers=0, actors=1))).algorithm.observe is not None
