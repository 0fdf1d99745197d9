"""Environments with a fault, or with a space that not every policy can serve; named by Python path in tests."""

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podium.core.specs import Array, Discrete, EnvSpec
from podium.envs.interface import JaxEnv, JaxStep


class Faulty(gymnasium.Env):
    """Episodes of eight steps; at step `at` of the environment's incarnation it does what `how` says."""

    def __init__(self, how: str = "none", at: int = 40, action: str = "discrete", flag: str = "") -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = {
            "discrete": spaces.Discrete(2),
            "box": spaces.Box(np.float32([-0.5, 2.0]), np.float32([0.5, 2.5])),
            "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
            "text": spaces.Text(4),
        }[action]
        self.how, self.at, self.flag, self.count, self.incarnation = how, at, flag, 0, 0

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        if self.how == "hang in reset" and seed and self._is_the_first():  # seed 0 is that of a look at its spaces
            threading.Event().wait()
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.count, self.incarnation = self.count + 1, self.incarnation + 1
        observation, reward = self.look(), 1.0
        if self.incarnation == self.at:
            if self.how == "raise":
                raise ZeroDivisionError("the wheel came off")
            if self.how == "hang" and self._is_the_first():
                threading.Event().wait()
            observation = np.zeros(7, np.float32) if self.how == "shape" else observation
            reward = {"nan": float("nan"), "reward None": None}.get(self.how, reward)
            observation = observation * np.float32("nan") if self.how == "nan seen" else observation
            if self.how == "four":
                return observation, reward, False, {}
        return observation, reward, self.count == 8 and self.how != "endless", False, {}

    def _is_the_first(self) -> bool:
        """Of all environments that were given this flag, in whatever process."""
        try:
            Path(self.flag).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Tree(Faulty):
    """A dict of a vector and a picture."""

    def __init__(self) -> None:
        super().__init__()
        picture = spaces.Box(0, 255, (4, 4, 1), np.uint8)
        self.observation_space = spaces.Dict(vector=spaces.Box(-1, 1, (3,), np.float32), picture=picture)

    def look(self) -> Any:
        return {"vector": super().look(), "picture": self.np_random.integers(0, 256, (4, 4, 1), np.uint8)}


def make(**kwargs: Any) -> gymnasium.Env:
    return Faulty(**kwargs)


def make_jax(at: int = 20) -> JaxEnv:
    """Endless; from step `at` on its rewards are nan."""
    import jax.numpy as jnp

    def reset(key: Any) -> tuple:
        return jnp.int32(0), jnp.zeros(1)

    def step(state: Any, action: Any, key: Any) -> tuple:
        reward = jnp.where(state >= at, jnp.nan, 1.0)
        return state + 1, JaxStep(jnp.zeros(1), reward, jnp.bool_(False), jnp.bool_(False))

    return JaxEnv(EnvSpec(Array((1,)), Discrete(2)), reset, step)


def make_tree() -> gymnasium.Env:
    return Tree()


def not_a_function_of_environments() -> int:
    return 3
