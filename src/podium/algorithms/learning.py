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
    experience = algorithm.experience
    if isinstance(experience, Fragments):
        train, metrics, _ = algorithm.update(train, fragment, key, axis)
        return train, store, metrics
    assert isinstance(experience, Replay), "members are not fragments"
    store = replay.add(experience, store, fragment)
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    most = updates_per_fragment(experience, fragment.valid.size * devices)
    enough = add_up(store.steps, axis) >= experience.starts
    # Steps count, reset rows do not: what they leave of an update is kept for the next fragment.
    asked = experience.ratio * add_up(jnp.sum(fragment.valid), axis)
    owed = store.owed + jnp.where(enough, asked, 0.0)
    turns = jnp.minimum(jnp.floor(owed + ROUNDING).astype(jnp.int32), most)
    return _update_from(store._replace(owed=owed - turns), algorithm, train, key, most, turns, axis)


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


def _update_from(
    store: replay.Buffer,
    algorithm: Algorithm,
    train: Tree,
    key: jax.Array,
    most: int,
    turns: jax.Array,
    axis: str | None,
) -> tuple[Tree, Tree, dict[str, jax.Array]]:
    """So many updates, and never more than `most`, each of rows drawn anew."""
    experience = algorithm.experience
    assert isinstance(experience, Replay)
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    if experience.batch_size % devices:
        raise ConfigError(f"algorithm.batch_size = {experience.batch_size}: must be a multiple of {devices} device(s)")
    key = key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis))
    keys = jax.random.split(key, (most, 2))

    def update(train: Tree, tree: Tree, top: jax.Array, number: jax.Array) -> tuple:
        buffer = store._replace(tree=tree, top=top)
        draw_key, learn_key = keys[number]
        drawn, index = replay.draw(experience, buffer, draw_key, experience.batch_size // devices, axis)
        train, metrics, priorities = algorithm.update(train, drawn, learn_key, axis)
        buffer = replay.reprioritize(experience, buffer, index, priorities)
        return train, buffer.tree, buffer.top, metrics

    def add_update(number: jax.Array, carry: tuple) -> tuple:
        train, tree, top, sums = carry
        *after, metrics = update(train, tree, top, number)
        return *after, jax.tree.map(jnp.add, sums, metrics)

    # The fragments are outside of the loop, which has no turns where there is not enough: a branch, or a loop that
    # returned them, would copy the buffer.
    shapes = jax.eval_shape(update, train, store.tree, store.top, jnp.int32(0))[-1]
    sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    train, tree, top, sums = jax.lax.fori_loop(0, turns, add_update, (train, store.tree, store.top, sums))
    metrics = {name: total / jnp.maximum(turns, 1) for name, total in sums.items()}
    return train, store._replace(tree=tree, top=top), metrics | {GRADIENT_UPDATES: turns}
