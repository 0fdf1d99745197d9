"""How trees lie on streams: fragments, parameters, requests and replies as lists of arrays with a schema.

Both ends work a layout out of the experiment alone, so that nothing but numbers travels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Algorithm, Individuals
from podium.core.config import Experiment
from podium.core.specs import Array, EnvSpec
from podium.core.types import ActInput, Fragment, Tree
from podium.envs.wrappers import parse_wrappers
from podium.ops.random_keys import run_key
from podium.protocol.schema import Field, Schema
from podium.workers.individual_records import record_shapes
from podium.workers.schedule import make_schedule


class Episodes(NamedTuple):
    """Return, length and metrics of the episodes that ended at each step, [T, B]; a length of 0: none did."""

    returns: Any  # float32
    lengths: Any  # int32
    metrics: Any = None  # float32[T, B, k], or None where the spec names none

    def ended(self) -> list[tuple[float, int]]:
        """Return and length of each."""
        returns, lengths = np.asarray(self.returns), np.asarray(self.lengths)
        return list(zip(returns[lengths > 0].tolist(), lengths[lengths > 0].tolist(), strict=True))

    def outcomes(self) -> np.ndarray | None:
        """The metrics of each, float32[n, k], in memory of their own; None where the spec names none."""
        return None if self.metrics is None else np.asarray(self.metrics)[np.asarray(self.lengths) > 0]


class Record(NamedTuple):
    """What travels as one fragment."""

    fragment: Fragment
    episodes: Episodes


class ActRequest(NamedTuple):
    """What an inference worker is sent for B rows: `core.types.ActInput` with raw keys, and the memory."""

    obs: Tree
    first: Any  # bool
    mask: Any  # bool[n] or None
    key: Any  # uint32[2]
    exploration: Any  # float32
    memory: Tree


class ActAnswer(NamedTuple):
    """What it sends back."""

    action: Any
    extras: Tree
    memory: Tree


@dataclass(frozen=True)
class Layout:
    """A tree's shape and its schema: `layout.tree(arrays)` and `layout.arrays(tree)` are inverse."""

    schema: Schema
    structure: Any

    def tree(self, arrays: Sequence[Any]) -> Any:
        """The arrays put in their places."""
        return jax.tree.unflatten(self.structure, arrays)

    def arrays(self, tree: Tree) -> list[np.ndarray]:
        """The leaves in the schema's order, on the host."""
        return [np.asarray(leaf) for leaf in self.structure.flatten_up_to(tree)]


@dataclass(frozen=True)
class Layouts:
    """All layouts of one experiment, for fragments of `rows` rows."""

    record: Layout
    params: Layout
    request: Layout  # of one row
    answer: Layout  # of one row


ROWS_AXES = Record(Fragment(*[1] * 11, memory=0), Episodes(1, 1, 1))
"""Along which axis of a record's arrays its rows lie: arrays are [T, B, ...], but for the memory [B, ...]."""


def make_layouts(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, rows: int) -> Layouts:
    """Traces the algorithm; computes nothing."""
    params, memory, action, extras = _shapes(algorithm, spec, experiment, rows)
    request = ActRequest(
        obs=_observation(spec.observation, ()),
        first=_like((), bool),
        mask=_like((spec.mask_size,), bool) if spec.masked else None,
        key=_like((2,), np.uint32),
        exploration=_like((), np.float32),
        memory=_without_rows(memory),
    )
    answer = ActAnswer(_without_rows(action), _without_rows(extras), _without_rows(memory))
    if isinstance(algorithm.experience, Individuals):
        slots, schedule = spec.rows(experiment.env.num_envs) // rows, make_schedule(experiment.topology.staleness)
        record = make_layout(record_shapes(algorithm.experience, spec, slots, schedule))
    else:
        shapes = _record(spec, algorithm.rollouts.length, rows, action, extras, memory)
        record = make_layout(shapes, _stacks(experiment, spec), ROWS_AXES)
    return Layouts(record, make_layout(params), make_layout(request), make_layout(answer))


def _record(spec: EnvSpec, length: int, rows: int, action: Any, extras: Tree, memory: Tree) -> Record:
    steps, one_more = (length, rows), (length + 1, rows)

    def in_time(x: Any) -> Any:
        return _like((length, *x.shape), x.dtype)

    fragment = Fragment(
        obs=_observation(spec.observation, one_more),
        first=_like(one_more, bool),
        mask=_like((*one_more, spec.mask_size), bool) if spec.masked else None,
        action=in_time(action),
        extras=jax.tree.map(in_time, extras),
        reward=_like(steps, np.float32),
        discounted=_like(steps, np.float32),
        terminated=_like(steps, bool),
        truncated=_like(steps, bool),
        valid=_like(steps, bool),
        version=_like(steps, np.int32),
        memory=memory,
    )
    metrics = _like((*steps, len(spec.metrics)), np.float32) if spec.metrics else None
    return Record(fragment, Episodes(_like(steps, np.float32), _like(steps, np.int32), metrics))


def _shapes(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, rows: int) -> tuple[Any, Any, Any, Any]:
    """Shapes of the parameters, and of memory, action and extras for `rows` rows."""

    def act(key: jax.Array) -> tuple:
        params = algorithm.params(algorithm.init(key, spec, experiment.hyper()))
        memory = algorithm.memory(params, rows)
        obs = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), _observation(spec.observation, (rows,)))
        mask = jnp.ones((rows, spec.mask_size), bool) if spec.masked else None
        inputs = ActInput(obs, jnp.ones(rows, bool), mask, jax.random.split(key, rows), jnp.ones(rows))
        action, extras, memory = algorithm.act(params, memory, inputs, False)
        return params, memory, action, extras

    return jax.eval_shape(act, run_key(experiment.seed))


def make_layout(shapes: Tree, stacks: dict[str, int] | None = None, rows_axes: Tree = 0) -> Layout:
    """The layout of a tree of shapes. `rows_axes` may be a prefix of the tree."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    fields = []
    for (path, leaf), axis in zip(leaves, jax.tree.leaves(jax.tree.broadcast(rows_axes, shapes)), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        fields.append(Field(name, tuple(leaf.shape), np.dtype(leaf.dtype).name, (stacks or {}).get(name, 1), axis))
    return Layout(Schema(tuple(fields)), structure)


def _observation(spec: Tree, leading: tuple[int, ...]) -> Tree:
    if isinstance(spec, Array):
        return _like((*leading, *spec.shape), spec.dtype)
    return {name: _observation(part, leading) for name, part in spec.items()}


def _stacks(experiment: Experiment, spec: EnvSpec) -> dict[str, int]:
    """How many frames the arrays of observations hold, by their names in a record.

    A guess from the wrappers and shapes is enough: a transport sends what does not repeat as it is.
    """
    asked = math.prod(w.count for w in parse_wrappers(experiment.env.wrappers) if w.name == "frame_stack" and w.count)
    names = make_layout(_record_names(spec)).schema.fields
    return {
        field.name: asked if asked > 1 else field.shape[-1]
        for field in names
        if len(field.shape) == 3 and field.dtype == "uint8" and field.shape[-1] % asked == 0 and field.shape[-1] > 3
    }


def _record_names(spec: EnvSpec) -> Record:
    """A record with nothing but the observations, without leading axes."""
    return Record(Fragment(_observation(spec.observation, ()), *[None] * 11), Episodes(None, None))


def _like(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def _without_rows(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: _like(x.shape[1:], x.dtype), tree)
