"""A package that registers environments with Gymnasium as it is imported, as other libraries do."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Shelf(gymnasium.Env):
    """Two of four actions are legal, as a method tells; an illegal one raises. Episodes of five steps."""

    def __init__(self, render_mode: str | None = None, price: float = 1.0) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(4)
        self.render_mode, self.price, self.count = render_mode, price, 0

    def action_masks(self) -> np.ndarray:
        return np.arange(4) % 2 == self.count % 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action], f"{action} is illegal"
        self.count += 1
        return np.zeros(2, np.float32), self.price, self.count == 5, False, {}


class OldReset(Shelf):
    """Resets as old Gym did, without a seed."""

    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return np.zeros(2, np.float32)


class OldResult(Shelf):
    """Gives the observation alone, as old Gym did."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32)


def Both() -> gymnasium.Env:  # noqa: N802
    """Has the name of an id, too."""
    return Shelf()


gymnasium.register("Shelf-v0", entry_point="envs.shelf:Shelf")
gymnasium.register("Both", entry_point="envs.shelf:Shelf")
