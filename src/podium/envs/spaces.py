"""Gymnasium spaces as Podium specs, and the codecs between the two for one environment.

Floats and integers become float32, categories one-hot float32; pictures stay bytes, as [H, W, C], and other bytes
are scaled to float32.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from podium.core.errors import ConfigError, EnvError
from podium.core.specs import Action, Array, Box, Discrete, MultiDiscrete, Observation
from podium.core.types import Tree
from podium.envs.codecs import ActionForm, Bytes, Categories, Form, to_image, to_image_shape, to_spec


def observation_spec(space: spaces.Space) -> Observation:
    """What an observation of this space looks like to a network.

    >>> observation_spec(spaces.Discrete(3))
    Array(shape=(3,), dtype='float32')
    """
    return to_spec(observation_form(space))


def observation_form(space: spaces.Space) -> Form:
    """What an observation of this space looks like as the environment gives it, but for a picture's layout."""
    match space:
        case spaces.Box() if space.dtype == np.uint8:
            image = to_image_shape(tuple(space.shape))
            return Bytes(space.low, space.high) if image is None else Array(image, "uint8")
        case spaces.Box() | spaces.MultiBinary():
            return Array(tuple(space.shape))
        case spaces.Discrete():
            return Categories((int(space.n),), (int(space.start),))
        case spaces.MultiDiscrete():
            start = np.broadcast_to(space.start, space.shape)
            nvec, start = (tuple(part.reshape(-1).tolist()) for part in (space.nvec, start))
            return Categories(nvec, start, tuple(space.shape))
        case spaces.Dict():
            return {key: observation_form(part) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return {str(i): observation_form(part) for i, part in enumerate(space.spaces)}
    raise ConfigError(f"env.id: observation space {space} is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict")


def action_spec(space: spaces.Space) -> Action:
    """What an action of this space looks like to a policy: choices count from 0, arrays are flat.

    >>> action_spec(spaces.Discrete(3, start=-1))
    Discrete(n=3)
    """
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        case spaces.MultiBinary():
            return MultiDiscrete((2,) * int(np.prod(space.shape)))
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
            return Box(tuple(space.shape), tuple(low), tuple(high))
    raise ConfigError(f"env.id: action space {space} is none of Discrete, MultiDiscrete, MultiBinary, Box of floats")


def action_form(space: spaces.Space) -> ActionForm:
    """What an action of this space looks like as the environment takes it."""
    match space:
        case spaces.Discrete(start=start):
            return ActionForm((), "int64", int(start))
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            start = np.asarray(space.start) if isinstance(space, spaces.MultiDiscrete) else 0
            return ActionForm(tuple(space.shape), np.dtype(space.dtype).name, start)
        case spaces.Box():
            return ActionForm(tuple(space.shape), np.dtype(space.dtype).name, 0, space.low, space.high)
    raise ConfigError(f"env.id: action space {space} is none of Discrete, MultiDiscrete, MultiBinary, Box of floats")


def action_decoder(space: spaces.Space) -> Callable[[Any], Any]:
    """A function from a policy's action (one row) to what the environment's `step` takes."""
    match space:
        case spaces.Discrete(start=start):
            return lambda action: start + int(action)
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
            return lambda action: (np.reshape(action, space.shape) + start).astype(space.dtype)
        case spaces.Box():
            low, high, shape, dtype = space.low, space.high, space.shape, space.dtype
            # casting first: a bound such as 0.1 must hold in the environment's own precision
            return lambda action: np.minimum(np.maximum(np.asarray(action, dtype).reshape(shape), low), high)
    raise ConfigError(f"env.id: action space {space} is none of Discrete, MultiDiscrete, MultiBinary, Box of floats")


Writer = Callable[[Any, Tree, int], None]


def observation_writer(space: spaces.Space, name: str = "observation") -> Writer:
    """A function `write(observation, arrays, row)` that encodes into row `row` of batched arrays.

    It raises EnvError where shape or type is not what the space promised.
    """
    match space:
        case spaces.Dict():
            return _dict_writer({k: (k, part) for k, part in space.spaces.items()}, name)
        case spaces.Tuple():
            return _dict_writer({str(i): (i, part) for i, part in enumerate(space.spaces)}, name)
        case spaces.Discrete(n=n, start=start):
            return _one_hot_writer(np.array([n]), np.array([start]), (), name)
        case spaces.MultiDiscrete():
            start = np.broadcast_to(space.start, space.shape).reshape(-1)
            return _one_hot_writer(space.nvec.reshape(-1), start, space.shape, name)
        case _:
            return _array_writer(tuple(space.shape or ()), observation_form(space), name)


def _array_writer(shape: tuple[int, ...], form: Form, name: str) -> Writer:
    assert isinstance(form, Array | Bytes)
    target = np.dtype("uint8" if isinstance(form, Bytes) else form.dtype)
    accepted: set[np.dtype] = {target}
    arrange: Callable[[np.ndarray], np.ndarray] = np.asarray
    if isinstance(form, Bytes):
        arrange = form.encode
    elif form.shape != shape:
        arrange = partial(to_image, layout=shape, image=form.shape)

    def write(observation: Any, arrays: np.ndarray, row: int) -> None:
        array = np.asarray(observation)
        if array.shape != shape:
            raise EnvError(f"{name} has shape {array.shape}, its space says {shape}")
        if array.dtype not in accepted:
            if not np.can_cast(array.dtype, target, "same_kind"):
                raise EnvError(f"{name} has dtype {array.dtype}, its space says {target}")
            accepted.add(array.dtype)
        arrays[row] = arrange(array)

    return write


def _one_hot_writer(nvec: np.ndarray, start: np.ndarray, shape: tuple[int, ...], name: str) -> Writer:
    offsets = np.concatenate([[0], np.cumsum(nvec)[:-1]]) - start

    def write(observation: Any, arrays: np.ndarray, row: int) -> None:
        value = np.asarray(observation)
        if value.shape != shape or not np.issubdtype(value.dtype, np.integer):
            raise EnvError(f"{name} is {value.dtype}{list(value.shape)}, its space says int{list(shape)}")
        value = value.reshape(-1)
        if (value < start).any() or (value >= start + nvec).any():
            raise EnvError(f"{name} = {observation}: outside its space, {start} to {start + nvec - 1}")
        arrays[row] = 0
        arrays[row, value + offsets] = 1

    return write


def _dict_writer(parts: dict[str, tuple[Any, spaces.Space]], name: str) -> Writer:
    writers = [(key, source, observation_writer(part, f"{name}[{key!r}]")) for key, (source, part) in parts.items()]
    names = {source for source, _ in parts.values()}

    def write(observation: Any, arrays: Tree, row: int) -> None:
        found = set(observation) if isinstance(observation, Mapping) else set(range(len(observation)))
        if found != names:
            raise EnvError(f"{name} has parts {sorted(found, key=str)}, its space says {sorted(names, key=str)}")
        for key, source, write_part in writers:
            write_part(observation[source], arrays[key], row)

    return write
