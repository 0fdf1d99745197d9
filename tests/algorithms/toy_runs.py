"""What tests of on-policy algorithms share: a fragment with every kind of end, one update, runs on toy environments."""

import jax
import numpy as np

from podium.algorithms import registry
from podium.core.algorithm_configs import AlgorithmConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.specs import Array, Discrete, EnvSpec
from podium.core.types import Fragment
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.workers.fused import Fused

SPEC = EnvSpec(Array((3,)), Discrete(2))
T, B = 4, 8


def small(algorithm: AlgorithmConfig) -> Experiment:
    """An experiment that eats `random_fragment`; the algorithm's fragment_length must be T."""
    env, network = EnvConfig("podium:Catch-v0", num_envs=B), NetworkConfig(hidden=(8,))
    return Experiment(algorithm=algorithm, env=env, network=network)


def random_fragment(seed: int = 0) -> Fragment:
    """A fragment with ends of both kinds and the reset rows that follow them."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, T, B), bool)
    terminated[0, 0] = truncated[1, 1] = True
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    first[2:] = (terminated | truncated)[:-1]
    return Fragment(
        obs=rng.normal(size=(T + 1, B, 3)).astype(np.float32),
        first=first,
        mask=None,
        action=rng.integers(0, 2, (T, B)).astype(np.int32),
        extras={"log_prob": rng.uniform(-1.2, -0.3, (T, B)).astype(np.float32)},
        reward=rng.normal(size=(T, B)).astype(np.float32) * valid,
        discounted=rng.normal(size=(T, B)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        version=np.zeros((T, B), np.int32),
        memory=(),
    )


def one_update(config: Experiment, fragment: Fragment, spec: EnvSpec = SPEC):
    """The state before and after, and the metrics."""
    algorithm = registry.make(config, spec)
    state = jax.jit(lambda key: algorithm.init(key, spec, config.hyper()))(jax.random.key(0))
    return state, *jax.jit(algorithm.update)(state, fragment, jax.random.key(1))[:2]


def assert_close(one, other) -> None:
    """Equal up to the rounding of sums in another order."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def run(env: str, algorithm: AlgorithmConfig, dispatches: int, updates: int = 1, devices: int = 1, **network):
    """A fused run on a toy environment: its last state, and the mean return of its last dispatch."""
    config = Experiment(
        algorithm=algorithm,
        env=EnvConfig(f"podium:{env}", num_envs=16),
        network=NetworkConfig(**{"hidden": (32,), **network}),
        topology=TopologyConfig(dispatch=updates),
    )
    toy_env = toy.make_env(env, {})
    fused = Fused(registry.make(config, toy_env.spec), vectorize(toy_env), config, jax.local_devices()[:devices])
    state, dispatched = fused.init(), None
    for _ in range(dispatches):
        state, dispatched = fused.dispatch(state, 10**9)
    assert dispatched is not None
    return state, np.mean([episode[0] for _, _, episodes in fused.rows_of(dispatched) for episode in episodes] or [0])
