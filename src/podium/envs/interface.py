"""The two kinds of environment: on the host (NumPy, batch first) and in JAX (one, vmapped by us).

Both use next-step autoreset once inside Podium: after a step that ends an episode, the next call
ignores the action, resets, and returns the new episode's first observation with reward 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from podium.core.specs import EnvSpec
from podium.core.types import Tree


class TimeStep(NamedTuple):
    """What B rows gave back, as NumPy or JAX arrays. `mask` is bool[B, n] of legal actions, or None.

    `episode_return` and `episode_length` count the task's own episode up to this step, before
    rewards are clipped or lives split; `episode_over` says that it ended here. `metrics` are numbers of that episode,
    in the order of `spec.metrics`, NaN where it has none; rows in which no episode ended may hold anything.
    """

    obs: Tree  # [B, ...]
    reward: Any  # float32[B]
    terminated: Any  # bool[B]
    truncated: Any  # bool[B]
    mask: Any
    episode_return: Any  # float32[B]
    episode_length: Any  # int32[B]
    episode_over: Any  # bool[B]
    metrics: Any = None  # float32[B, k], or None where the spec names none


class HostEnv(ABC):
    """Environments stepped together, with B rows: one for each of their agents.

    env = make(...)
    step = env.reset()
    while True:
        step = env.step(policy(step.obs))   # or send(), do something else, recv()

    Arrays that `recv` returned may be overwritten by the second next `send`, no earlier.
    """

    spec: EnvSpec
    num_envs: int
    steps_in_send: bool = False
    """Whether `send` makes the whole step in the caller's thread, so that `recv` returns at once: a hint."""

    @property
    def num_rows(self) -> int:
        """B: what arrays have along their first axis, one row for each agent of each environment."""
        return self.spec.rows(self.num_envs)

    @abstractmethod
    def reset(self) -> TimeStep:
        """Start all episodes anew. Rewards are 0 and nothing has ended."""

    @abstractmethod
    def send(self, actions: np.ndarray) -> None:
        """Hand over one action a row ([B], [B, k] or [B, *shape]) and return at once where possible."""

    @abstractmethod
    def recv(self) -> TimeStep:
        """Wait for the step that `send` started. Never for ever: a lost worker raises EnvError."""

    @abstractmethod
    def close(self) -> None:
        """Free processes, threads and memory. Calling it twice is harmless."""

    def step(self, actions: np.ndarray) -> TimeStep:
        """Send, then receive."""
        self.send(actions)
        return self.recv()

    def save(self) -> Tree | None:
        """All that the steps to come follow from, as a tree of arrays and numbers that stay as they are.

        None, unless overridden: it cannot be had, and a run that is resumed begins new episodes.
        """
        return None

    def load(self, saved: Tree) -> TimeStep:
        """Go on from where `save` was called, in this or another process: the step that it came after."""
        raise AssertionError(f"{type(self).__name__} saves nothing")

    def render(self) -> np.ndarray:
        """A picture [H, W, 3] of environment 0, for videos."""
        raise NotImplementedError(f"{type(self).__name__} draws no pictures")


class JaxStep(NamedTuple):
    """What one JAX environment gave back for one step."""

    obs: Tree
    reward: Any
    terminated: Any
    truncated: Any


class JaxEnv(NamedTuple):
    """One environment as pure functions; Podium vmaps them and resets by itself.

    env = JaxEnv(spec, reset, step)
    state, obs = env.reset(key)
    state, step = env.step(state, action, key)
    """

    spec: EnvSpec
    reset: Callable[[Any], tuple[Tree, Tree]]
    step: Callable[[Tree, Any, Any], tuple[Tree, JaxStep]]
    mask: Callable[[Tree], Any] | None = None  # state -> bool[n] of legal actions
