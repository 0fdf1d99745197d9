"""Between what an environment itself gives and takes and what a policy sees and says, for one row or a batch of them.

Adapters do the same inside a run; this is for a trained policy that is asked from outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from podium.core.errors import ConfigError
from podium.core.specs import Action, Array, Box, Discrete, EnvSpec, MultiDiscrete, Observation
from podium.core.types import Tree

SMALLEST_PICTURE = 16
"""Pixels of a side: bytes in two axes that are shorter are a board or a table."""


@dataclass(frozen=True)
class Categories:
    """Choices as the environment counts them, int[*shape]; a policy sees them as one-hot float32[sum(nvec)]."""

    nvec: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...] = ()

    def encode(self, values: np.ndarray) -> np.ndarray:
        """[B, *shape] to [B, sum(nvec)]."""
        chosen = values.reshape(len(values), -1) - np.array(self.start)
        if (chosen < 0).any() or (chosen >= self.nvec).any():
            last = np.add(self.start, self.nvec) - 1
            raise ConfigError(f"predict: {values.tolist()}: must be within {list(self.start)} to {last.tolist()}")
        one_hot = np.zeros((len(values), sum(self.nvec)), np.float32)
        np.put_along_axis(one_hot, chosen + np.cumsum((0, *self.nvec[:-1])), 1, axis=1)
        return one_hot


@dataclass(frozen=True, eq=False)
class Bytes:
    """Bytes that are no picture, such as Atari's RAM; a policy sees them as float32, 0 to 1 between their bounds."""

    low: np.ndarray
    high: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one observation."""
        return self.low.shape

    def encode(self, values: np.ndarray) -> np.ndarray:
        """[..., *shape] to the same shape."""
        span = np.maximum(self.high.astype(np.float32) - self.low, 1)
        return (values - self.low.astype(np.float32)) / span


Form = Array | Categories | Bytes | Mapping[str, Any]
"""What an observation looks like as the environment gives it: a tree like its spec."""


def to_spec(form: Form) -> Observation:
    """What a policy sees of it.

    >>> to_spec({"gear": Categories((3,), (1,))})
    {'gear': Array(shape=(3,), dtype='float32')}
    """
    match form:
        case Array():
            return form
        case Categories(nvec):
            return Array((sum(nvec),))
        case Bytes():
            return Array(form.shape)
    return {key: to_spec(part) for key, part in form.items()}


@dataclass(frozen=True, eq=False)
class ActionForm:
    """What an action looks like as the environment takes it: choices counted from `start`, or numbers within bounds."""

    shape: tuple[int, ...]
    dtype: str
    start: np.ndarray | int = 0
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """A policy's actions [B, ...] as [B, *shape]."""
        # casting first: a bound such as 0.1 must hold in the environment's own precision
        values = np.asarray(actions, self.dtype).reshape(-1, *self.shape)
        if self.low is None or self.high is None:
            return values + np.asarray(self.start, self.dtype)
        return np.minimum(np.maximum(values, self.low), self.high)


class Codec(NamedTuple):
    """Both ways of one environment. A plain value: a run keeps it, so that its policy needs no environment.

    obs, batched = codec.encode(env.reset()[0])
    env.step(codec.decode(actions)[0])
    """

    form: Form
    action: ActionForm

    def encode(self, observation: Any) -> tuple[Tree, bool]:
        """The arrays [B, ...] that a policy sees, and whether the observation was a batch; one alone becomes B = 1."""
        return _encode(self.form, observation, "an observation")

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Actions [B, ...] of a policy as the environment takes them."""
        return self.action.decode(actions)


def make_codec(spec: EnvSpec) -> Codec:
    """Of an environment that speaks as its spec says."""
    return Codec(spec.observation, make_action_form(spec.action))


def make_action_form(spec: Action, start: np.ndarray | int = 0) -> ActionForm:
    """Of actions as a spec has them, with choices that count from `start`."""
    match spec:
        case Discrete():
            return ActionForm((), "int32", start)
        case MultiDiscrete(nvec):
            return ActionForm((len(nvec),), "int32", start)
        case Box(shape):
            low, high = (np.reshape(side, shape).astype(np.float32) for side in (spec.low, spec.high))
            return ActionForm(shape, "float32", 0, low, high)


def to_image_shape(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """[H, W, C] of bytes that are a picture, None of others. [H, W] and [C, H, W] are, where it is beyond doubt.

    >>> to_image_shape((84, 84)), to_image_shape((3, 84, 84)), to_image_shape((128,))
    ((84, 84, 1), (84, 84, 3), None)
    """
    if len(shape) == 2 and min(shape) >= SMALLEST_PICTURE:
        return (*shape, 1)
    if is_channels_first(shape):
        return (*shape[1:], shape[0])
    return shape if len(shape) == 3 else None


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether bytes of this shape are [C, H, W]: both other axes are as long as a picture's, and twice as the first."""
    return len(shape) == 3 and min(shape[1:]) >= max(SMALLEST_PICTURE, 2 * shape[0])


def to_image(pixels: np.ndarray, layout: tuple[int, ...], image: tuple[int, ...]) -> np.ndarray:
    """Pixels [..., *layout] as [..., H, W, C]: a view."""
    if layout == image:
        return pixels
    return pixels[..., None] if len(layout) == 2 else np.moveaxis(pixels, -3, -1)


def _encode(form: Form, observation: Any, name: str) -> tuple[Tree, bool]:
    match form:
        case Mapping():
            return _encode_parts(form, observation, name)
        case Array():
            if not form.is_image:
                values, _, batched = _to_batch(observation, [form.shape], name)
                return values.astype(form.dtype), batched
            height, width, channels = form.shape
            layouts = [form.shape, (channels, height, width), *([(height, width)] if channels == 1 else [])]
            values, layout, batched = _to_batch(observation, layouts, name, "an integer")
            return to_image(values, layout, form.shape).astype(form.dtype), batched
        case _:
            values, _, batched = _to_batch(observation, [form.shape], name, "an integer")
            return form.encode(values), batched


def _encode_parts(form: Mapping[str, Any], observation: Any, name: str) -> tuple[Tree, bool]:
    if not isinstance(observation, Mapping):  # a tuple, or what is none of both
        parts = observation if isinstance(observation, tuple | list) else ()
        observation = {str(i): part for i, part in enumerate(parts)}
    if set(observation) != set(form):
        raise ConfigError(f"predict: {name} has the parts {sorted(observation)}: must have {sorted(form)}")
    encoded = {key: _encode(part, observation[key], f"{name}[{key!r}]") for key, part in form.items()}
    batched = {flag for _, flag in encoded.values()}
    if len(batched) > 1:
        raise ConfigError(f"predict: some parts of {name} are a batch, others are not: must be all or none")
    return {key: array for key, (array, _) in encoded.items()}, batched.pop()


def _to_batch(
    observation: Any, layouts: list[tuple[int, ...]], name: str, kind: str = ""
) -> tuple[np.ndarray, tuple[int, ...], bool]:
    """The observation with a batch axis, which of the layouts its rows have, and whether it had that axis."""
    values = np.asarray(observation)
    if kind and not np.issubdtype(values.dtype, np.integer):
        raise ConfigError(f"predict: {name} of dtype {values.dtype}: must be {kind}, as the environment gives it")
    for layout in layouts:
        if values.shape == layout:
            return values[None], layout, False
    for layout in layouts:
        if values.shape[1:] == layout and values.ndim > 0:
            return values, layout, True
    raise ConfigError(f"predict: {name} of shape {values.shape}: must be {layouts[0]}, or a batch of those")
