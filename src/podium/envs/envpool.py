"""EnvPool environments: C++ threads step them, we only rename what they return.

A step costs a handful of NumPy calls, so it uses the pool's own `_send` and `_recv`; the public pair around
them copies actions, builds nested dicts and costs more than a CartPole step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import envpool
import numpy as np

from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.core.specs import Action, Array, Box, Discrete, EnvSpec, MultiDiscrete
from podium.core.types import Tree
from podium.envs.codecs import Bytes, Categories, Codec, Form, make_action_form, to_spec
from podium.envs.interface import HostEnv, TimeStep
from podium.envs.metrics import refuse_unknown_metrics

OWN_OPTIONS = frozenset(
    {"num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path", "seed"}
    | {"env_seed", "gym_reset_return_info", "reward_threshold"}
)
"""Options of EnvPool's constructor that are Podium's to set, not a user's."""

ATARI_OPTIONS = {"episodic_life": True, "reward_clip": True}
"""What the `atari` wrapper adds to EnvPool's defaults (84x84 gray, skip 4, stack 4, no-op and fire resets)."""


def list_ids() -> list[str]:
    """Every id that EnvPool has."""
    return envpool.list_all_envs()


def known_options(env_id: str) -> dict[str, Any]:
    """The options that a user may set, with their defaults: `{"max_episode_steps": 500}`."""
    try:
        values = envpool.make_spec(env_id).config
    except ImportError as error:
        raise ConfigError(f"env.id = 'envpool:{env_id}': this installation of EnvPool lacks it: {error}") from None
    return {name: getattr(values, name) for name in values._fields if name not in OWN_OPTIONS}


def is_atari(env_id: str) -> bool:
    """Whether it is a game of EnvPool's Atari, by an option that only those have."""
    return "episodic_life" in known_options(env_id)


def make_spec(env_id: str, kwargs: Mapping[str, Any], metrics: Sequence[str] = ()) -> EnvSpec:
    """The spec of an id with these options; no environment is made. `metrics` must be in its info, or is_success."""
    known = known_options(env_id)
    for name in kwargs:
        if name not in known:
            hint = suggest(name, known) or f"; known are {', '.join(sorted(known))}"
            raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: EnvPool's {env_id} has no {name!r}{hint}")
    try:
        layout = envpool.make_spec(env_id, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: EnvPool's {env_id} refuses it: {error}") from None
    action = _action_spec(env_id, layout)
    numbers = _info_numbers(layout)
    refuse_unknown_metrics(f"EnvPool's {env_id}", metrics, numbers)
    return EnvSpec(
        observation=to_spec(_observation_form(layout)),
        action=action,
        masked=_mask_key(layout, action) is not None,
        metrics=tuple(name for name in metrics if name in numbers),
    )


def make_pool_codec(env_id: str, kwargs: Mapping[str, Any]) -> Codec:
    """How observations and actions differ from the spec: categories are numbers, choices need not begin at 0."""
    layout = envpool.make_spec(env_id, **kwargs)
    part, action = _action_part(layout), _action_spec(env_id, layout)
    form = _observation_form(layout)
    start = 0 if isinstance(action, Box) else np.asarray(_action_bounds(part)[0])
    return Codec(form, make_action_form(action, start))


class EnvPoolEnv(HostEnv):
    """B environments of one EnvPool id, one seed each; `repeat` plays each action several times.

    env = EnvPoolEnv("HalfCheetah-v5", seeds=range(64), threads=2)
    step = env.reset()
    env.send(actions)     # C++ threads step while we do something else
    step = env.recv()

    A pool whose batch is all of its environments returns rows in the order they were sent, in fresh arrays.
    """

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int] | np.ndarray,
        threads: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        render: bool = False,
        repeat: int = 1,
        metrics: Sequence[str] = (),
    ) -> None:
        options = dict(kwargs or {})
        self.spec = make_spec(env_id, options, metrics)
        self.num_envs = len(seeds)
        self._repeat = repeat
        self._pool: Any = envpool.make(
            env_id,
            env_type="gymnasium",
            num_envs=self.num_envs,
            env_seed=[int(seed) % 2**31 for seed in seeds],  # EnvPool's seeds are int32
            num_threads=0 if threads is None else min(threads, self.num_envs),
            **({"render_mode": "rgb_array"} if render else {}),
            **options,
        )
        layout = self._pool.spec
        self._places = {name: place for place, name in enumerate(layout._state_keys)}
        self._raw_reward = self._places.get("info:reward", self._places["reward"])
        self._game_over = self._places.get("info:terminated")
        self._mask = self._places.get(_mask_key(layout, self.spec.action) or "")
        self._metrics = [self._places[f"info:{name}"] for name in self.spec.metrics]
        self._read = _observation_reader(layout, self._places)
        self._ids = np.arange(self.num_envs, dtype=np.int32)
        self._write_actions, self._actions = _action_writer(layout, self.spec.action, self.num_envs)
        self._returns = np.zeros(self.num_envs, np.float32)
        self._goes_on = np.zeros(self.num_envs, np.bool_)
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self) -> TimeStep:
        self._pool._reset(self._ids)
        self._goes_on = np.zeros(self.num_envs, np.bool_)
        return self._time_step(self._pool._recv())

    def send(self, actions: np.ndarray) -> None:
        # into our own array: EnvPool's threads read it until recv, and the caller may reuse theirs
        self._write_actions(actions)
        self._pool._send([self._ids, self._ids, self._actions])

    def recv(self) -> TimeStep:
        values = self._pool._recv()
        return self._time_step(values if self._repeat == 1 else self._repeat_actions(values))

    def render(self) -> np.ndarray:
        return self._pool.render()[0]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None  # its threads end with it

    def _time_step(self, values: list[np.ndarray]) -> TimeStep:
        places = self._places
        done, truncated = values[places["done"]], values[places["trunc"]]
        over = done if self._game_over is None else (values[self._game_over] != 0) | truncated
        self._returns = self._returns * self._goes_on + values[self._raw_reward]
        self._goes_on = ~over
        self._ended = done
        return TimeStep(
            obs=self._read(values),
            reward=values[places["reward"]],
            terminated=done > truncated,  # at its limit an episode is truncated, even one that ended there by itself
            truncated=truncated,
            mask=None if self._mask is None else values[self._mask].reshape(self.num_envs, -1).astype(np.bool_),
            episode_return=self._returns,
            episode_length=values[places["elapsed_step"]],
            episode_over=over,
            metrics=np.stack([values[i] for i in self._metrics], 1, dtype=np.float32) if self._metrics else None,
        )

    def _repeat_actions(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Repeat the action in the rows that are still running; a reset row is not repeated."""
        done, elapsed = self._places["done"], self._places["elapsed_step"]
        running = self._ids[~values[done] & ~self._ended]
        for _ in range(self._repeat - 1):
            if running.size == 0:
                break
            self._pool._send([running, running, self._actions[running]])
            later = self._pool._recv()
            for place, value in enumerate(later):
                if place in (self._places["reward"], self._raw_reward):
                    value = value + values[place][running]
                values[place][running] = value
            running = running[~later[done]]
        values[elapsed] = -(-values[elapsed] // self._repeat)  # every step but an episode's last is a full one
        return values


def _observation_keys(layout: Any) -> dict[str, Any]:
    return {key: part for key, part in layout.state_array_spec.items() if key.split(":")[0] == "obs"}


def _info_numbers(layout: Any) -> list[str]:
    """What the pool's info has one number of for each environment."""
    parts = {key.removeprefix("info:"): part for key, part in layout.state_array_spec.items() if key[:5] == "info:"}
    return [name for name, part in parts.items() if _shape(part) == () and not name.endswith("env_id")]


def _shape(part: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in part.shape if n != -1)


def _leaf_form(part: Any) -> Array | Categories | Bytes:
    shape = _shape(part)
    if _is_category(part):
        return Categories((int(part.maximum) + 1,), (0,))
    if np.dtype(part.dtype) != np.uint8:
        return Array(shape)
    if len(shape) != 3:
        return Bytes(*(np.broadcast_to(np.asarray(side, np.uint8), shape) for side in (part.minimum, part.maximum)))
    # EnvPool's images are [C, H, W]
    return Array((*shape[1:], shape[0]) if shape[0] < shape[2] else shape, "uint8")


def _is_category(part: Any) -> bool:
    integers = np.issubdtype(part.dtype, np.integer) and np.dtype(part.dtype) != np.uint8
    return integers and _shape(part) == () and part.minimum == 0 and int(part.maximum) < 2**16


def _observation_form(layout: Any) -> Form:
    tree: dict[str, Any] = {}
    for key, part in _observation_keys(layout).items():
        *folders, name = key.replace(":", ".").split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = _leaf_form(part)
    return _unwrap(tree["obs"])


def _unwrap(tree: Any) -> Any:
    """An observation of one part is that part."""
    while isinstance(tree, dict) and len(tree) == 1:
        tree = next(iter(tree.values()))
    return tree


def _leaf_reader(part: Any) -> Any:
    form = _leaf_form(part)
    if isinstance(form, Categories):
        one_hot = np.eye(form.nvec[0], dtype=np.float32)
        return lambda array: one_hot[array]
    if isinstance(form, Bytes):
        return form.encode
    if form.dtype == "uint8":
        # a view: whoever stores the batch copies it anyway
        return (lambda array: array.transpose(0, 2, 3, 1)) if form.shape != _shape(part) else (lambda array: array)
    if np.dtype(part.dtype) == np.float32:
        return lambda array: array
    return lambda array: array.astype(np.float32)


def _observation_reader(layout: Any, places: Mapping[str, int]) -> Any:
    """A function from the pool's list of arrays to the observation tree."""
    leaves = [(key, places[key], _leaf_reader(part)) for key, part in _observation_keys(layout).items()]
    if len(leaves) == 1:
        _, place, read = leaves[0]
        return lambda values: read(values[place])

    def read_tree(values: list[np.ndarray]) -> Tree:
        tree: dict[str, Any] = {}
        for key, place, read in leaves:
            *folders, name = key.replace(":", ".").split(".")
            branch = tree
            for folder in folders:
                branch = branch.setdefault(folder, {})
            branch[name] = read(values[place])
        return _unwrap(tree["obs"])

    return read_tree


def _action_part(layout: Any) -> Any:
    return list(layout.action_array_spec.values())[-1]


def _action_bounds(part: Any) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.asarray(part.minimum, float), np.asarray(part.maximum, float)
    if np.issubdtype(part.dtype, np.floating):
        limits = np.finfo(part.dtype)
        # EnvPool writes the smallest and largest float where there is no bound
        low, high = np.where(low == limits.tiny, -np.inf, low), np.where(high >= limits.max, np.inf, high)
    return low, high


def _action_spec(env_id: str, layout: Any) -> Action:
    part, players = _action_part(layout), layout.config.max_num_players
    if len(layout.action_array_spec) != 3 or players != 1:
        raise ConfigError(f"env.id = 'envpool:{env_id}': it has several players or actions; Podium plays one")
    shape, size = _shape(part), int(np.prod(_shape(part), dtype=int))
    low, high = (np.broadcast_to(side, shape).reshape(-1) for side in _action_bounds(part))
    if np.issubdtype(part.dtype, np.floating):
        return Box(shape, tuple(low.tolist()), tuple(high.tolist()))
    choices = tuple(int(n) for n in high - low + 1)
    return Discrete(choices[0]) if shape == () else MultiDiscrete(choices[:size])


def _action_writer(layout: Any, spec: Action, num_envs: int) -> tuple[Any, np.ndarray]:
    """A function that brings a batch of actions into the pool's own array, within bounds, and that array."""
    part = _action_part(layout)
    array = np.zeros((num_envs, *_shape(part)), part.dtype)
    low, high = (np.broadcast_to(side, array.shape[1:]).astype(part.dtype) for side in _action_bounds(part))

    def clip(actions: np.ndarray) -> None:
        np.maximum(actions, low, out=array, casting="unsafe")
        np.minimum(array, high, out=array)

    def shift(actions: np.ndarray) -> None:
        np.add(actions, low, out=array, casting="unsafe")

    def copy(actions: np.ndarray) -> None:
        array[...] = actions

    if isinstance(spec, Box):
        return clip, array
    return (shift if np.any(low) else copy), array


def _mask_key(layout: Any, action: Action) -> str | None:
    """Where the pool says which actions are legal, if it does so for every choice."""
    size = EnvSpec(Array(()), action).mask_size
    parts = layout.state_array_spec
    keys = [key for key in ("info:action_mask", "info:legal_action_mask", "obs:action_mask") if key in parts]
    return next((key for key in keys if size and np.prod(_shape(parts[key]), dtype=int) == size), None)
