"""Wrappers inside one Gymnasium environment: frame stack, action repeat, time limit, Atari, a user's own."""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podium.core.errors import ConfigError
from podium.envs.codecs import is_channels_first
from podium.envs.gymnasium_rows import GameWrapper, WrapEnv
from podium.envs.wrappers import Wrapper


def wrap_env(env: gymnasium.Env, wrappers: Sequence[Wrapper]) -> gymnasium.Env:
    """Apply `env.wrappers` in order."""
    for wrapper in wrappers:
        match wrapper:
            case Wrapper("atari"):
                env = preprocess_atari(env)
            case Wrapper("frame_stack", count):
                env = FrameStack(env, count)
            case Wrapper("action_repeat", count):
                env = ActionRepeat(env, count)
            case Wrapper("time_limit", count):
                env = TimeLimit(env, count)
            case _:
                env = wrapper.function(env)
                if not isinstance(env, gymnasium.Env):
                    kind = type(env).__name__
                    raise ConfigError(f"env.wrappers = {wrapper.name!r}: must return a gymnasium.Env, not {kind}")
    return env


def wrapping(wrappers: Sequence[Wrapper]) -> WrapEnv | None:
    """`wrap_env` as a function of the environment alone; None where there is nothing to wrap."""
    return partial(wrap_env, wrappers=tuple(wrappers)) if wrappers else None


class FrameStack(gymnasium.Wrapper):
    """The last `count` observations along the last axis, or the channels; an episode's first one fills them all."""

    def __init__(self, env: gymnasium.Env, count: int) -> None:
        super().__init__(env)
        self._count = count
        self._frames: list[Any] = []
        self.observation_space = _stack_space(env.observation_space, count)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self._frames = [deepcopy(observation)] * self._count  # the environment may overwrite its own
        return _stack(self.env.observation_space, self._frames), info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        self._frames = [*self._frames[1:], deepcopy(observation)]
        return _stack(self.env.observation_space, self._frames), *rest


def _stack_space(space: spaces.Space, count: int) -> spaces.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _stack_space(part, count) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"env.wrappers = 'frame_stack': stacks arrays, and an observation is {space}")
    return spaces.Box(_stack(space, [space.low] * count), _stack(space, [space.high] * count), dtype=space.dtype.type)


def _stack(space: spaces.Space, frames: Sequence[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _stack(part, [frame[key] for frame in frames]) for key, part in space.spaces.items()}
    if len(space.shape or ()) in (0, 2):
        return np.stack(frames, axis=-1)
    channels_first = space.dtype == np.uint8 and is_channels_first(tuple(space.shape or ()))
    return np.concatenate(frames, axis=0 if channels_first else -1)


class ActionRepeat(gymnasium.Wrapper):
    """Plays each action `count` times, or until the episode ends, and adds up the rewards."""

    def __init__(self, env: gymnasium.Env, count: int) -> None:
        super().__init__(env)
        self._count = count

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._count - 1):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                return observation, total, terminated, truncated, info
        observation, reward, *rest = self.env.step(action)
        return observation, total + float(reward), *rest


class TimeLimit(GameWrapper):
    """Truncates a game after `count` steps; a lost life does not set it back, as Gymnasium's own limit would."""

    def __init__(self, env: gymnasium.Env, count: int) -> None:
        super().__init__(env)
        self._count = count
        self._steps = 0

    def begin_game(self) -> None:
        self._steps = 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._steps >= self._count:
            return observation, reward, terminated, True, {**info, "episode_over": True}
        return observation, reward, terminated, truncated, info


def preprocess_atari(env: gymnasium.Env) -> gymnasium.Env:
    """The usual Atari form: up to 30 no-ops, skip 4 with a maximum, 84x84 gray, lives, signs, four frames."""
    if not hasattr(env.unwrapped, "ale"):
        raise ConfigError("env.wrappers = 'atari': works on ALE games, such as ALE/Pong-v5")
    if env.unwrapped._frameskip != 1:  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError("env.wrappers = 'atari': skips frames itself; leave frameskip out of env.kwargs, or set it 1")
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    return FrameStack(SignReward(Lives(env)), 4)


class Lives(GameWrapper):
    """A lost life ends an episode for the learner; the game goes on until it is over. Presses FIRE to start."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._playing = False
        self._lives = 0
        meanings = env.unwrapped.get_action_meanings()  # pyright: ignore[reportAttributeAccessIssue]
        self._start = meanings.index("FIRE") if "FIRE" in meanings else 0

    def begin_game(self) -> None:
        self._playing = False

    def reset(self, **kwargs: Any) -> Any:
        if not self._playing:
            observation, info = self.env.reset(**kwargs)
        observation, _, terminated, truncated, info = self.env.step(self._start)
        if terminated or truncated:
            observation, info = self.env.reset()
        self._playing = True
        self._lives = self._count_lives()
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._count_lives()
        lost, self._lives = lives < self._lives, lives
        self._playing = not (terminated or truncated)
        if lost and self._playing:
            return observation, reward, True, truncated, {**info, "episode_over": False}
        return observation, reward, terminated, truncated, info

    def _count_lives(self) -> int:
        return self.env.unwrapped.ale.lives()  # pyright: ignore[reportAttributeAccessIssue]


class SignReward(gymnasium.Wrapper):
    """Rewards as -1, 0 or 1."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(np.sign(float(reward))), *rest
