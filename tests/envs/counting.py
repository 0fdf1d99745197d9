"""Environments whose every number is known, for the tests of adapters. Importable in spawned processes."""

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podium.core.specs import Array, Discrete, EnvSpec
from podium.envs.gymnasium import GymnasiumEnv
from podium.envs.interface import HostEnv, JaxEnv, JaxStep, TimeStep


class Counting(gymnasium.Env):
    """Observation and reward are the step's number; terminated at `end`, truncated at `limit`."""

    def __init__(self, end: int = 3, limit: int = 99, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = spaces.Discrete(2, start=5)
        self.end, self.limit, self.count, self.render_mode = end, limit, 0, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        self.count += 1
        return np.full(1, self.count), float(self.count), self.count >= self.end, self.count >= self.limit, {}

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.count, np.uint8)


class Reusing(Counting):
    """Returns one array all the time, and writes each observation over the last."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.buffer[...], info = super().reset(seed=seed)
        return self.buffer, info

    def step(self, action: Any) -> Any:
        self.buffer[...], *rest = super().step(action)
        return self.buffer, *rest


class Broken(Counting):
    """Breaks in one of several ways at its second step, if its seed is 7."""

    def __init__(self, how: str = "raise") -> None:
        super().__init__()
        self.how, self.seed = how, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed or self.seed
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        if self.count == 2 and self.seed == 7:
            if self.how == "raise":
                raise ZeroDivisionError("the wheel came off")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hang":
                time.sleep(60)
            observation = {"shape": np.zeros(7), "dtype": np.array(["a"])}[self.how]
        return observation, *rest


class Succeeding(Counting):
    """Every fourth episode of three steps is a success, and only then has a distance, of 7."""

    def __init__(self, success: Any = True) -> None:
        super().__init__()
        self.episode, self.success = 0, success

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        *step, info = super().step(action)
        reached = self.episode % 4 == 0
        return *step, info | {"is_success": self.success if reached else False} | ({"distance": 7} if reached else {})


class Rich(gymnasium.Env):
    """A nested observation of every kind, a multi-discrete action and a mask."""

    def __init__(self, parts: bool = False) -> None:
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (8, 8, 3), np.uint8),
            inner=spaces.Dict(speed=spaces.Box(-1, 1, (2,), np.float64), gear=spaces.Discrete(3, start=1)),
        )
        self.action_space = spaces.MultiDiscrete([2, 3])
        self.parts, self.count = parts, 0

    def look(self) -> Any:
        image = np.full((8, 8, 3), self.count, np.uint8)
        mask = (np.array([1, 0]), np.array([0, 1, 1]))
        inner = {"speed": np.full(2, 0.5), "gear": 1 + self.count % 3}
        return {"image": image, "inner": inner}, {"action_mask": mask if self.parts else np.concatenate(mask)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.look()

    def step(self, action: Any) -> Any:
        assert action[0] == 0, "illegal"
        assert action[1] in (1, 2), "illegal"
        self.count += 1
        observation, info = self.look()
        return observation, 1.0, self.count == 4, False, info


class Echo(gymnasium.Env):
    """Pays the sum of the action it was given: shows what clipping did."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(np.array([[-1], [-2]]), np.array([[1], [3]]), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space, action
        return np.zeros(1, np.float32), float(action.sum()), False, False, {}


class Picture(gymnasium.Env):
    """Bytes of any shape, of which the last one counts the steps."""

    def __init__(self, shape: tuple[int, ...], high: int = 255) -> None:
        self.observation_space = spaces.Box(0, high, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self.count = 0

    def look(self) -> np.ndarray:
        pixels = np.arange(np.prod(self.observation_space.shape), dtype=np.uint32) % 5
        pixels[-1] = self.count
        return pixels.astype(np.uint8).reshape(self.observation_space.shape)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.look(), 1.0, self.count == 9, False, {}


class Doubled(gymnasium.Wrapper):
    """A user's own wrapper: rewards twice as high."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, 2 * float(reward), *rest


def make_counting(**kwargs: Any) -> gymnasium.Env:
    return Counting(**kwargs)


def make_succeeding(**kwargs: Any) -> gymnasium.Env:
    return Succeeding(**kwargs)


def make_counting_jax(end: int = 3, limit: int = 99) -> JaxEnv:
    import jax.numpy as jnp

    def reset(key: Any) -> tuple:
        return 0, jnp.zeros(1)  # a Python number in the state, as users write it

    def step(state: Any, action: Any, key: Any) -> tuple:
        count = state + 1
        obs = jnp.full(1, count, jnp.float32)
        return count, JaxStep(obs, jnp.float32(count), count >= end, count >= limit)

    return JaxEnv(EnvSpec(Array((1,)), Discrete(2)), reset, step)


def make_counting_host(seeds: list[int], end: int = 3) -> GymnasiumEnv:
    return GymnasiumEnv(lambda: Counting(end), seeds)


def double_jax(env: JaxEnv) -> JaxEnv:
    def step(state: Any, action: Any, key: Any) -> tuple:
        state, step = env.step(state, action, key)
        return state, step._replace(reward=2 * step.reward)

    return env._replace(step=step)


def make_nothing() -> int:
    return 3


class Batch(HostEnv):
    """A user's own batch, which at its second step does what `how` says."""

    def __init__(self, seeds: list[int], how: str) -> None:
        self.spec, self.num_envs = EnvSpec(Array((2,)), Discrete(2), metrics=("distance",)), len(seeds)
        self.how, self.count = how, 0

    def reset(self) -> TimeStep:
        self.count = 0
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        self.count += 1
        if self.how == "raise" and self.count == 2:
            raise ZeroDivisionError("the wheel came off")

    def recv(self) -> TimeStep:
        rows, bad = self.num_envs, self.count == 2
        obs = np.zeros((rows, 1) if self.how == "obs" and bad else (rows, 2), np.float32)
        reward = np.float32(1) if self.how == "reward" and bad else np.ones(rows, np.float32)
        no = np.zeros(rows, bool)
        metrics = np.zeros(rows if self.how == "metrics" and bad else (rows, 1), np.float32)
        return TimeStep(obs, reward, no, no, None, np.zeros(rows, np.float32), np.zeros(rows, np.int32), no, metrics)

    def save(self) -> Any:
        match self.how:
            case "save words":
                return {"count": self.count, "how": self.how}
            case "save more":
                return np.zeros(self.count)
            case "save late":
                return np.zeros(2) if self.count else None
        return None

    def close(self) -> None:
        pass


def make_batch(seeds: list[int], how: str = "none") -> HostEnv:
    if how == "make":
        raise ZeroDivisionError("no wheel at all")
    return Batch(seeds, how)


def make_bad_jax(how: str) -> JaxEnv:
    """A JaxEnv whose functions do not keep to its spec."""
    if how == "make":
        raise ZeroDivisionError("no wheel at all")
    env = make_counting_jax()

    def step(state: Any, action: Any, key: Any) -> tuple:
        if how == "raise":
            raise ZeroDivisionError("the wheel came off")
        state, step = env.step(state, action, key)
        match how:
            case "obs":
                return state, step._replace(obs=step.obs[None])
            case "reward":
                return state, step._replace(reward=step.obs)
        return state, tuple(step)

    return env._replace(step=step)


class Clumsy(Counting):
    """Registered with Gymnasium: a mistake of its own, or one that its arguments make."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.area = size * "2" * "3" if size == 7 else size


gymnasium.register("podium-tests/Clumsy-v0", entry_point=Clumsy)
