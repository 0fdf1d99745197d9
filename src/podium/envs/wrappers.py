"""Wrappers by name: what `env.wrappers` may hold, and those that work on a whole batch.

Where a wrapper acts depends on the environment: inside each Gymnasium environment (gymnasium_wrappers), inside
the XLA program (jax_wrappers), by EnvPool's own options, or, for a stack of frames, on the batch (here).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from podium.core.errors import ConfigError
from podium.core.imports import is_python_path, load_path, suggest
from podium.core.specs import Array, Observation
from podium.core.types import Tree
from podium.envs.buffers import allocate_observation, map_arrays
from podium.envs.interface import HostEnv, TimeStep

COUNTED = ("frame_stack", "action_repeat", "time_limit")
NAMES = ("atari", "frame_stack(4)", "action_repeat(2)", "time_limit(200)", "my_module:wrap")


@dataclass(frozen=True)
class Wrapper:
    """One entry of `env.wrappers`: a name and its number, or a user's own function."""

    name: str
    count: int = 0
    function: Any = None


def parse_wrappers(texts: Sequence[str]) -> tuple[Wrapper, ...]:
    """Read `env.wrappers`.

    >>> parse_wrappers(["frame_stack(4)"])
    (Wrapper(name='frame_stack', count=4, function=None),)
    """
    return tuple(parse_wrapper(text) for text in texts)


def parse_wrapper(text: str) -> Wrapper:
    """Read one entry, or raise ConfigError that says what would be right."""
    if text == "atari":
        return Wrapper("atari")
    if is_python_path(text):
        function = load_path(text, "env.wrappers")
        if not callable(function):
            raise ConfigError(f"env.wrappers = {text!r}: must be a function from an environment to an environment")
        return Wrapper(text, function=function)
    match = re.fullmatch(r"(\w+)\((\d+)\)", text)
    if match and match[1] in COUNTED and int(match[2]) >= 1:
        return Wrapper(match[1], int(match[2]))
    name = text.partition("(")[0].strip()
    if name in COUNTED:
        example = next(known for known in NAMES if known.startswith(name))
        raise ConfigError(f"env.wrappers = {text!r}: {name} takes a whole number of at least 1, such as {example}")
    near = suggest(name, ("atari", *COUNTED))
    raise ConfigError(f"env.wrappers = {text!r}: must be one of {', '.join(NAMES)}{near}")


def stack_spec(spec: Observation, count: int) -> Observation:
    """The spec of `count` frames: pixels without channels get a last axis, all else grows along its last.

    >>> stack_spec(Array((84, 84), "uint8"), 4), stack_spec(Array((3,)), 2)
    (Array(shape=(84, 84, 4), dtype='uint8'), Array(shape=(6,), dtype='float32'))
    """
    if isinstance(spec, Mapping):
        return {key: stack_spec(part, count) for key, part in spec.items()}
    if grows_axis(spec):
        return Array((*spec.shape, count), spec.dtype)
    return Array((*spec.shape[:-1], spec.shape[-1] * count), spec.dtype)


def grows_axis(spec: Array) -> bool:
    """Whether a stack of it needs a new last axis."""
    return len(spec.shape) in (0, 2)


class HostFrameStack(HostEnv):
    """The last `count` observations as one, the newest last; an episode's first one fills the stack.

    env = HostFrameStack(env, 4)
    """

    def __init__(self, env: HostEnv, count: int) -> None:
        self._env = env
        self._count = count
        self.num_envs, self.steps_in_send = env.num_envs, env.steps_in_send
        self.spec = replace(env.spec, observation=stack_spec(env.spec.observation, count))
        # three, because the newest is made from the one before, and that one must outlive the next send
        self._stacks = [allocate_observation(self.spec.observation, env.num_rows) for _ in range(3)]
        self._newest = 0
        self._ended = np.ones(env.num_rows, np.bool_)

    def reset(self) -> TimeStep:
        self._ended = np.ones(self.num_rows, np.bool_)
        return self._stack(self._env.reset())

    def send(self, actions: np.ndarray) -> None:
        self._env.send(actions)

    def recv(self) -> TimeStep:
        return self._stack(self._env.recv())

    def save(self) -> Tree | None:
        inner = self._env.save()
        return None if inner is None else (inner, map_arrays(np.copy, self._stacks[self._newest]))

    def load(self, saved: Tree) -> TimeStep:
        inner, stack = saved
        step = self._env.load(inner)
        map_arrays(np.copyto, self._stacks[self._newest], stack)
        self._ended = step.terminated | step.truncated
        return step._replace(obs=self._stacks[self._newest])

    def render(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _stack(self, step: TimeStep) -> TimeStep:
        before, after = self._stacks[self._newest], self._stacks[(self._newest + 1) % 3]
        self._newest = (self._newest + 1) % 3
        map_arrays(self._push, step.obs, before, after)
        self._ended = step.terminated | step.truncated
        return step._replace(obs=after)

    def _push(self, frame: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        if frame.ndim < after.ndim:
            frame = frame[..., None]
        width = frame.shape[-1]
        after[..., :-width] = before[..., width:]
        after[..., -width:] = frame
        if self._ended.any():
            fresh = frame[self._ended]
            after[self._ended] = np.concatenate([fresh] * self._count, axis=-1)


def refuse(wrapper: Wrapper, reason: str) -> ConfigError:
    """The error for a wrapper that this kind of environment cannot have."""
    return ConfigError(f"env.wrappers = {wrapper.name!r}: {reason}")
