"""What an environment looks like from outside: shapes, dtypes and action kinds, without jax.

An observation spec is a tree: an `Array`, or a dict of them. An action spec is one of
`Discrete`, `MultiDiscrete` and `Box`. All are plain values: hashable, comparable, printable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Array:
    """One array of an observation, without its batch axis: `Array((84, 84, 4), "uint8")`."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def is_image(self) -> bool:
        """Whether a network should treat it as pixels: [H, W, C] bytes."""
        return self.dtype == "uint8" and len(self.shape) == 3


@dataclass(frozen=True)
class Discrete:
    """One choice out of n. A legal-action mask for it is bool[n]."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices. A legal-action mask for it is bool[sum(nvec)]."""

    nvec: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Real numbers within bounds; an unbounded side is ±inf."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many numbers one action has."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def is_bounded(self) -> bool:
        """Whether every number has a finite lower and upper bound."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


Observation = Array | Mapping[str, Any]
Action = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class EnvSpec:
    """What an environment takes and gives. `masked`: it tells which actions are legal.

    A *row* is an (environment, agent) pair: an environment's agents stand side by side, in the order of `agents`.
    `metrics` names the numbers that it gives at an episode's end. A policy does not depend on them: specs that differ
    in nothing else are equal.
    """

    observation: Observation
    action: Action
    masked: bool = False
    agents: tuple[str, ...] = ("agent",)
    metrics: tuple[str, ...] = field(default=(), compare=False)

    def rows(self, num_envs: int) -> int:
        """How many rows so many environments have."""
        return num_envs * len(self.agents)

    def env_steps(self, valid: Any) -> Any:
        """How many environment steps the valid rows [T, B] are of: an agent took part in them."""
        return valid.reshape(len(valid), -1, len(self.agents)).any(axis=-1).sum()

    @property
    def mask_size(self) -> int:
        """Length of a legal-action mask; 0 for continuous actions, which have none."""
        match self.action:
            case Discrete(n):
                return n
            case MultiDiscrete(nvec):
                return sum(nvec)
            case Box():
                return 0
