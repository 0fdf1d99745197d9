"""A user's own HostEnv, checked at each step: what is of another shape would be broadcast, and learned from."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from podium.core.errors import EnvError
from podium.core.specs import Observation
from podium.core.types import Tree
from podium.envs.interface import HostEnv, TimeStep
from podium.envs.user_errors import user_errors

ROWS = {
    **dict.fromkeys(("reward", "episode_return"), np.float32),
    **dict.fromkeys(("terminated", "truncated", "episode_over"), np.bool_),
    "episode_length": np.int32,
}
"""Fields of a TimeStep that have one number a row."""
UNKNOWN = "unknown"


class OwnHost(HostEnv):
    """Around a user's HostEnv: its errors name its seeds, and its arrays are what its spec says.

    env = OwnHost(make_env(seeds=seeds), seeds)
    """

    def __init__(self, env: HostEnv, seeds: Sequence[int]) -> None:
        self._env = env
        self._name = f"the environments with seeds {[int(seed) for seed in seeds]}"
        if getattr(env, "num_envs", None) != len(seeds) or not hasattr(env, "spec"):
            raise EnvError(f"{self._name}: a HostEnv must have a spec, and num_envs = {len(seeds)}")
        self.spec, self.num_envs, self.steps_in_send = env.spec, env.num_envs, env.steps_in_send
        self._form: Tree = UNKNOWN  # of what it saves

    def reset(self) -> TimeStep:
        with user_errors(f"{self._name} raised in reset"):
            step = self._env.reset()
        return self._checked(step, "reset")

    def send(self, actions: np.ndarray) -> None:
        with user_errors(f"{self._name} raised in send"):
            self._env.send(actions)

    def recv(self) -> TimeStep:
        with user_errors(f"{self._name} raised in recv"):
            step = self._env.recv()
        return self._checked(step, "recv")

    def save(self) -> Tree | None:
        with user_errors(f"{self._name} raised in save"):
            saved = self._env.save()
        form = describe_saved(saved)
        if any(part.startswith(("object", "<U", "|S")) for part in jax.tree.leaves(form)):
            raise EnvError(f"{self._name} in save: a checkpoint holds arrays and numbers only, not {form}")
        if self._form not in (UNKNOWN, form):
            raise EnvError(f"{self._name} in save: it is {form}, and was {self._form}: its shape must not change")
        self._form = form
        return saved

    def load(self, saved: Tree) -> TimeStep:
        with user_errors(f"{self._name} raised in load"):
            step = self._env.load(saved)
        return self._checked(step, "load")

    def render(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _checked(self, step: TimeStep, place: str) -> TimeStep:
        where = f"{self._name} in {place}"
        if not isinstance(step, TimeStep):
            raise EnvError(f"{where}: must return a TimeStep, not {type(step).__name__}")
        check_observation(self.spec.observation, step.obs, (self.num_rows,), f"{where}: obs")
        for name, dtype in ROWS.items():
            check_array(getattr(step, name), (self.num_rows,), dtype, f"{where}: {name}")
        if self.spec.masked:
            check_array(step.mask, (self.num_rows, self.spec.mask_size), np.bool_, f"{where}: mask")
        if self.spec.metrics:
            check_array(step.metrics, (self.num_rows, len(self.spec.metrics)), np.float32, f"{where}: metrics")
        return step


def describe_saved(saved: Tree) -> Tree:
    """Dtype and shape of each leaf, as one line: "float32(4, 2)"."""

    def line(leaf: Any) -> str:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        return f"{array.dtype}{array.shape}"

    return jax.tree.map(line, saved)


def check_observation(spec: Observation, obs: Any, lead: tuple[int, ...], name: str) -> None:
    """Raise EnvError unless it is the tree that the spec says, with `lead` axes in front of each array."""
    if not isinstance(spec, Mapping):
        return check_array(obs, (*lead, *spec.shape), spec.dtype, name)
    if not isinstance(obs, Mapping) or set(obs) != set(spec):
        found = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
        raise EnvError(f"{name} is {found}, its spec says a dict of {sorted(spec)}")
    for key, part in spec.items():
        check_observation(part, obs[key], lead, f"{name}[{key!r}]")


def check_array(array: Any, shape: tuple[int, ...], dtype: Any, name: str) -> None:
    """Raise EnvError unless it has this shape, and numbers that the dtype (None: any) can hold."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise EnvError(f"{name} is {type(array).__name__}, its spec says an array of shape {shape}")
    if tuple(array.shape) != shape:
        raise EnvError(f"{name} has shape {tuple(array.shape)}, its spec says {shape}")
    if dtype is not None and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(f"{name} has dtype {array.dtype}, its spec says {np.dtype(dtype)}")
