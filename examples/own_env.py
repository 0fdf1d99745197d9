"""Environments of your own, by their Python path: one in Gymnasium's form, one as JAX functions.

podium train ppo own_env:make_env --total-steps 20_000
podium train ppo own_env:make_jax_env --total-steps 20_000
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from podium.core.specs import Array, Discrete, EnvSpec
from podium.envs.interface import JaxEnv, JaxStep


class Corridor(gymnasium.Env):
    """Walk from the middle of a corridor to its right end: each step costs 0.01, the goal pays 1."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._place = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._place = self.length // 2
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        found = self._place >= self.length
        return self._look(), 1.0 if found else -0.01, found, False, {}

    def _look(self) -> np.ndarray:
        return np.array([self._place / self.length], np.float32)


def make_env(length: int = 8) -> gymnasium.Env:
    """`--set env.kwargs.length=20` makes it longer. The time limit truncates, which is not an end of the task."""
    return gymnasium.wrappers.TimeLimit(Corridor(length), max_episode_steps=100)


def make_jax_env(length: int = 8) -> JaxEnv:
    """The same corridor as pure functions: Podium runs it fused, inside one XLA program."""

    def look(place: jax.Array) -> jax.Array:
        return jnp.array([place / length], jnp.float32)

    def reset(key: jax.Array) -> tuple[Any, Any]:
        place, time = jnp.int32(length // 2), jnp.int32(0)
        return (place, time), look(place)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, JaxStep]:
        place, time = state
        place, time = jnp.maximum(0, place + 2 * action - 1), time + 1
        found = place >= length
        return (place, time), JaxStep(look(place), jnp.where(found, 1.0, -0.01), found, time >= 100)

    return JaxEnv(EnvSpec(Array((1,)), Discrete(2)), reset, step)
