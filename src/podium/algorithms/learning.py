"""What a learner does with a fragment, by the algorithm's kind of experience: in every mode the same functions.

    store = learning.init(algorithm, fragment)
    train, store, metrics = learning.learn(algorithm, train, store, fragment, key, axis)

`store` is what experience is kept in between updates: nothing on-policy, a replay buffer off-policy. Off-policy,
the metrics hold `gradient_updates`: how many were made. Where it is 0 the others mean nothing: see `reported`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from podium.algorithms import replay
from podium.algorithms.algorithm import Algorithm, Fragments, Replay
from podium.algorithms.collectives import add_up
from podium.core.errors import ConfigError
from podium.core.types import Fragment, Tree

GRADIENT_UPDATES = "gradient_updates"
ROUNDING = 1e-3
"""Of an update, by which ten tenths may be short of one."""


def init(algorithm: Algorithm, fragment: Fragment, devices: int = 1) -> Tree:
    """The store before the first fragment, of which this is one by its shapes; the share of one of the devices."""
    if isinstance(algorithm.experience, Replay):
        return replay.init(algorithm.experience, fragment, devices)
    return ()


def learn(
    algorithm: Algorithm, train: Tree, store: Tree, fragment: Fragment, key: jax.Array, axis: str | None = None
) -> tuple[Tree, Tree, dict[str, jax.Array]]:
    """Make of the fragment what the algorithm makes of it: an update, or some after it was stored."""
    if isinstance(algorithm.experience, Fragments):
        train, metrics, _ = algorithm.update(train, fragment, key, axis)
        return train, store, metrics
    if algorithm.observe is not None:
        train = algorithm.observe(train, fragment, axis)
    store, turns = take_in(algorithm, store, fragment, axis)
    sums = no_sums(algorithm, train, store, axis)
    train, store, sums = update_some(algorithm, train, store, sums, key, 0, turns, axis)
    metrics = {name: total / jnp.maximum(turns, 1) for name, total in sums.items()}
    return train, store, metrics | {GRADIENT_UPDATES: turns}


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a fragment without those that no update stands behind."""
    if metrics.get(GRADIENT_UPDATES, 1) == 0:
        return {GRADIENT_UPDATES: 0.0}
    return dict(metrics)


def updates_per_fragment(experience: Replay, rows: int) -> int:
    """Updates after each fragment of so many rows (T x B), if every row is a step.

    >>> updates_per_fragment(Replay(8, 0.99, batch_size=1, capacity=100, starts=0, ratio=0.5), rows=32)
    16
    """
    updates = experience.ratio * rows
    if updates < 1 or abs(updates - round(updates)) > 1e-6:
        raise ConfigError(
            f"algorithm.update_ratio = {experience.ratio}: times fragment_length x num_envs = {rows} it must be a "
            "whole number of updates, and at least 1"
        )
    return round(updates)


def take_in(
    algorithm: Algorithm, store: replay.ReplayBuffer, fragment: Fragment, axis: str | None = None
) -> tuple[replay.ReplayBuffer, jax.Array]:
    """The buffer with the fragment in it, and how many updates are due now: they are counted as made."""
    experience = _replay(algorithm)
    store = replay.add(experience, store, fragment)
    enough = add_up(store.steps, axis) >= experience.starts
    # Steps count, reset rows do not: what they leave of an update is kept for the next fragment.
    asked = experience.ratio * add_up(jnp.sum(fragment.valid), axis)
    owed = store.owed + jnp.where(enough, asked, 0.0)
    turns = jnp.minimum(jnp.floor(owed + ROUNDING).astype(jnp.int32), _most(algorithm, store, axis))
    return store._replace(owed=owed - turns), turns


def update_some(
    algorithm: Algorithm,
    train: Tree,
    store: replay.ReplayBuffer,
    sums: dict[str, jax.Array],
    key: jax.Array,
    begin: jax.Array | int,
    end: jax.Array | int,
    axis: str | None = None,
) -> tuple[Tree, replay.ReplayBuffer, dict[str, jax.Array]]:
    """The updates [begin, end) of those that are due after a fragment, each of rows drawn anew; `sums` of their metrics
    grow. In however many parts they are made, they are the same.
    """
    key = key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis))
    keys = jax.random.split(key, (_most(algorithm, store, axis), 2))

    def add_update(number: jax.Array, carry: tuple) -> tuple:
        train, tree, top, sums = carry
        *after, metrics = _update(algorithm, train, store._replace(tree=tree, top=top), keys[number], axis=axis)
        return *after, jax.tree.map(jnp.add, sums, metrics)

    # The fragments are outside of the loop, which has no turns where there is not enough: a branch, or a loop that
    # returned them, would copy the buffer.
    train, tree, top, sums = jax.lax.fori_loop(begin, end, add_update, (train, store.tree, store.top, sums))
    return train, store._replace(tree=tree, top=top), sums


def no_sums(
    algorithm: Algorithm, train: Tree, store: replay.ReplayBuffer, axis: str | None = None
) -> dict[str, jax.Array]:
    """What `update_some` begins to add to."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
    shapes = jax.eval_shape(lambda *given: _update(algorithm, *given, axis=axis)[-1], train, store, keys)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _update(
    algorithm: Algorithm, train: Tree, buffer: replay.ReplayBuffer, keys: jax.Array, *, axis: str | None
) -> tuple[Tree, Tree, jax.Array, dict[str, jax.Array]]:
    """One update: the training state, the buffer's priorities, and metrics."""
    experience, devices = _replay(algorithm), 1 if axis is None else jax.lax.axis_size(axis)
    if experience.batch_size % devices:
        raise ConfigError(f"algorithm.batch_size: its {experience.batch_size} rows must be shared by {devices} devices")
    draw_key, learn_key = keys
    drawn, index = replay.draw(experience, buffer, draw_key, experience.batch_size // devices, axis)
    train, metrics, priorities = algorithm.update(train, drawn, learn_key, axis)
    buffer = replay.reprioritize(experience, buffer, index, priorities)
    return train, buffer.tree, buffer.top, metrics


def _replay(algorithm: Algorithm) -> Replay:
    assert isinstance(algorithm.experience, Replay), "individuals are not fragments"
    return algorithm.experience


def _most(algorithm: Algorithm, store: replay.ReplayBuffer, axis: str | None) -> int:
    """Updates after a fragment in which every row is a step."""
    _, length, columns = store.fragments.valid.shape
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    return updates_per_fragment(_replay(algorithm), length * columns * devices)
