"""Environments whose step takes as long as it is told, and a policy whose actions do: for benchmarks/topology.py.

podium train ppo artificial:make_busy --set env.kwargs.ms=2         (with benchmarks/ on PYTHONPATH)
"""

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np

from podium.algorithms import ppo
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import ActInput, Tree


class Artificial(gymnasium.Env):
    """Noise to look at, episodes of 200 steps. A subclass says how a step spends its time."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, ms: float) -> None:
        self.step_s = ms / 1e3
        self.count = 0

    def spend(self) -> None:
        """One step's time."""
        raise NotImplementedError

    def look(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 8).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.spend()
        self.count += 1
        return self.look(), float(action == 0), False, self.count == 200, {}


class Waiting(Artificial):
    """Waits, as for a simulator elsewhere: no core is used."""

    def spend(self) -> None:
        time.sleep(self.step_s)


class Busy(Artificial):
    """Computes for so long in Python, by its own thread's clock: on a busy machine the work stays the same."""

    def spend(self) -> None:
        end = time.thread_time() + self.step_s
        while time.thread_time() < end:
            sum(range(100))


def make_waiting(ms: float = 2.0) -> gymnasium.Env:
    return Waiting(ms)


def make_busy(ms: float = 2.0) -> gymnasium.Env:
    return Busy(ms)


@dataclass(frozen=True)
class DelayedConfig(PPOConfig):
    """PPO whose actions take longer to choose."""

    delay_ms: float = 5.0
    """Waited for each batch of actions, whatever its size, as for a large network on a device of its own."""


def delayed_ppo(config: DelayedConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """PPO that waits in `act`. The wait is inside the compiled function, so whoever acts is busy for so long."""
    algorithm = ppo.make(config, experiment, spec)

    def wait(action: np.ndarray) -> np.ndarray:
        time.sleep(config.delay_ms / 1e3)
        return np.asarray(action)

    def act(params: Tree, memory: Tree, inputs: ActInput, greedy: bool) -> tuple:
        action, extras, memory = algorithm.act(params, memory, inputs, greedy)
        late = jax.pure_callback(wait, jax.ShapeDtypeStruct(action.shape, action.dtype), action)
        return late, extras, memory

    return algorithm._replace(act=act)
