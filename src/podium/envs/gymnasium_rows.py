"""B Gymnasium environments stepped one after another into preallocated arrays, with autoreset.

The part that the in-process adapter and the worker processes share.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from podium.core.errors import ConfigError, EnvError, PodiumError
from podium.core.specs import EnvSpec
from podium.envs.codecs import Codec
from podium.envs.interface import TimeStep
from podium.envs.spaces import (
    action_decoder,
    action_form,
    action_spec,
    observation_form,
    observation_spec,
    observation_writer,
)
from podium.envs.user_errors import user_errors

MakeEnv = Callable[[], gymnasium.Env]
WrapEnv = Callable[[gymnasium.Env], gymnasium.Env]


class EpisodeTally(gymnasium.Wrapper):
    """Sums the task's own rewards, inside of every wrapper that would clip or split them."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.episode_return = 0.0

    def reset(self, **kwargs: Any) -> Any:
        self.episode_return = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            right = "(observation, reward, terminated, truncated, info)"
            raise EnvError(f"it must return {right}, not {_describe(result)} ({_where(self.env)})")
        try:
            self.episode_return += float(result[1])
        except (TypeError, ValueError):
            raise EnvError(f"reward is {_describe(result[1])}, must be a number ({_where(self.env)})") from None
        return result


class GameWrapper(gymnasium.Wrapper):
    """A wrapper that tells the task's own episode, a game, from what ends in it, such as lives."""

    def begin_game(self) -> None:
        """The next reset begins a new game, whatever ended the one before."""
        raise NotImplementedError


def probe(make: MakeEnv, wrap: WrapEnv | None = None) -> EnvSpec:
    """The spec of one environment: made, reset once, closed."""
    return examine(make, wrap)[0]


def examine(make: MakeEnv, wrap: WrapEnv | None = None, metrics: tuple[str, ...] = ()) -> tuple[EnvSpec, Codec]:
    """The same, and how its own observations and actions differ from its spec's; `metrics` are looked for in info."""
    with user_errors("the environment raised when it was made and reset (seed 0)"):
        env = make() if wrap is None else wrap(make())
        try:
            info = begin(env, 0)[1]
            masks = find_masks(env)
        finally:
            env.close()
    spec = EnvSpec(
        observation=observation_spec(env.observation_space),
        action=action_spec(env.action_space),
        masked="action_mask" in info or masks is not None,
        metrics=metrics,
    )
    return spec, Codec(observation_form(env.observation_space), action_form(env.action_space))


def begin(env: gymnasium.Env, seed: int | None) -> tuple[Any, dict]:
    """Reset, and say what is wrong where an environment is of the old Gym."""
    right = "must be reset(*, seed=None, options=None) and return (observation, info), as Gymnasium has it"
    try:
        result: Any = env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" in str(error):
            raise EnvError(f"{type(env.unwrapped).__name__}.reset takes no seed, as in old Gym: {right}") from None
        raise
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise EnvError(f"{type(env.unwrapped).__name__}.reset gave {type(result).__name__}, as in old Gym: {right}")
    return result


def find_masks(env: gymnasium.Env) -> Callable[[], Any] | None:
    """The method `action_masks` of an environment or one of its wrappers, as Stable-Baselines3 has it; None without."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None


class GymnasiumRows:
    """B environments, each with its own seed, index and running episode.

    rows = GymnasiumRows(lambda: gymnasium.make("CartPole-v1"), seeds=[1, 2], spec=spec)
    rows.reset(out)
    rows.step(actions, out)      # next-step autoreset
    """

    def __init__(
        self, make: MakeEnv, seeds: Sequence[int], spec: EnvSpec, wrap: WrapEnv | None = None, first_index: int = 0
    ) -> None:
        self.spec = spec
        self._seeds = [int(seed) for seed in seeds]
        self._first_index = first_index
        self._seeded = False
        self._envs: list[gymnasium.Env] = []
        self._tallies: list[EpisodeTally] = []
        for row in range(len(seeds)):
            try:
                tally = EpisodeTally(make())
                self._tallies.append(tally)
                self._envs.append(tally if wrap is None else wrap(tally))
            except Exception as error:
                blame = self._blame(row, "its constructor", error)
                self.close()
                raise blame from error
        self._masks = [find_masks(env) for env in self._envs]
        self._games = [list(_game_wrappers(env)) for env in self._envs]
        self._check_spec()
        self._write = observation_writer(self._envs[0].observation_space)
        self._decode = action_decoder(self._envs[0].action_space)
        self._ended = [False] * len(seeds)
        self._lengths = [0] * len(seeds)
        self._over = [True] * len(seeds)

    def _check_spec(self) -> None:
        for row, env in enumerate(self._envs):
            found = observation_spec(env.observation_space), action_spec(env.action_space)
            if found != (self.spec.observation, self.spec.action):
                wanted = self.spec.observation, self.spec.action
                raise EnvError(f"{self._name(row)}: its spaces {found} are not those of the first one, {wanted}")

    def reset(self, out: TimeStep) -> None:
        """Start every episode anew; the first time with each environment's own seed."""
        row = 0
        try:
            for row in range(len(self._envs)):
                self._over[row] = True
                self._reset_row(row, out, None if self._seeded else self._seeds[row])
        except Exception as error:
            raise self._blame(row, "reset", error) from error
        self._seeded = True

    def step(self, actions: np.ndarray, out: TimeStep) -> None:
        """One step of every environment, or its reset where the step before ended an episode."""
        row, ended = 0, False
        try:
            for row, ended in enumerate(self._ended):
                if ended:
                    self._reset_row(row, out, None)
                else:
                    self._step_row(row, actions[row], out)
        except Exception as error:
            raise self._blame(row, "reset" if ended else "step", error) from error

    def render(self) -> np.ndarray:
        """A picture of the first environment."""
        try:
            picture = self._envs[0].render()
        except NotImplementedError:
            raise NotImplementedError(f"{self._name(0)} draws no pictures") from None
        except Exception as error:
            raise self._blame(0, "render", error) from error
        if not isinstance(picture, np.ndarray):
            raise EnvError(f'{self._name(0)}: render gave no picture; it must be made with render_mode="rgb_array"')
        return picture

    def close(self) -> None:
        """Close every environment; twice is harmless."""
        while self._envs:
            self._envs.pop().close()

    def _reset_row(self, row: int, out: TimeStep, seed: int | None) -> None:
        if self._over[row]:  # else a life was lost, and the task's own episode goes on
            self._lengths[row] = 0
            for wrapper in self._games[row]:
                wrapper.begin_game()
        observation, info = begin(self._envs[row], seed)
        self._ended[row] = False
        self._fill(row, out, observation, info, 0.0, False, False)

    def _step_row(self, row: int, action: Any, out: TimeStep) -> None:
        result = self._envs[row].step(self._decode(action))
        observation, reward, terminated, truncated, info = result
        self._lengths[row] += 1
        self._ended[row] = bool(terminated or truncated)
        self._over[row] = self._ended[row] and info.get("episode_over", True)
        # an end that is both is terminated: nothing follows it, whatever the clock says
        self._fill(row, out, observation, info, float(reward), bool(terminated), bool(truncated and not terminated))

    def _fill(
        self, row: int, out: TimeStep, observation: Any, info: dict, reward: float, terminated: bool, truncated: bool
    ) -> None:
        self._write(observation, out.obs, row)
        out.reward[row] = reward
        out.terminated[row] = terminated
        out.truncated[row] = truncated
        out.episode_return[row] = self._tallies[row].episode_return
        out.episode_length[row] = self._lengths[row]
        out.episode_over[row] = over = (terminated or truncated) and self._over[row]
        if over and out.metrics is not None:
            out.metrics[row] = [_to_number(info, name) for name in self.spec.metrics]
        if out.mask is not None:
            out.mask[row] = self._legal(row, info)

    def _legal(self, row: int, info: dict) -> np.ndarray:
        own = self._masks[row]
        if "action_mask" not in info and own is not None:
            info = {"action_mask": own()}
        if "action_mask" not in info:
            raise EnvError('info has no "action_mask", which its first reset had')
        mask = info["action_mask"]
        mask = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else np.ravel(mask)
        if mask.shape != (self.spec.mask_size,):
            raise EnvError(f'info["action_mask"] has {mask.size} entries, its action space needs {self.spec.mask_size}')
        return mask

    def _name(self, row: int) -> str:
        return f"environment {self._first_index + row} (seed {self._seeds[row]})"

    def _blame(self, row: int, place: str, error: Exception) -> PodiumError:
        """Whatever a user's environment raises, as an EnvError that says which one and where."""
        if isinstance(error, ConfigError):
            return error
        if isinstance(error, EnvError):
            return EnvError(f"{self._name(row)} in {place}: {error}")
        own = "".join(traceback.format_exception(error))
        return EnvError(f"{self._name(row)} raised in {place}:\n{own}")


def _to_number(info: dict, name: str) -> float:
    """A number of an episode's last info: NaN where it is not there, or None."""
    if (value := info.get(name)) is None:
        return math.nan
    try:
        return float(np.asarray(value, np.float64).item())
    except (TypeError, ValueError):
        raise EnvError(f"info[{name!r}] is {_describe(value)}, must be a number (env.metrics)") from None


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return repr(value) if value is None or isinstance(value, str) else f"{type(value).__name__} {value!r:.60}"


def _where(env: gymnasium.Env) -> str:
    """The user's own line: where the environment's `step` is written."""
    own = type(env.unwrapped).step
    try:
        return f"{inspect.getsourcefile(own)}, line {inspect.getsourcelines(own)[1]}, {own.__qualname__}"
    except (OSError, TypeError):
        return own.__qualname__


def _game_wrappers(env: gymnasium.Env) -> Iterator[GameWrapper]:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, GameWrapper):
            yield env
        env = env.env
