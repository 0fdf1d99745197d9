"""What a learner does with a fragment, by the algorithm's kind of experience: in every mode the same functions.

    store = learning.init(algorithm, fragment)
    train, store, metrics = learning.learn(algorithm, train, store, fragment, key, axis)

`store` is what experience is kept in between updates: nothing on-policy, a replay buffer off-policy. Off-policy,
the metrics hold `gradient_updates`: how many were made. Where it is 0 the others mean nothing: see `reported`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from podium.algorithms import replay
from podium.algorithms.algorithm import Algorithm, Fragments, Replay
from podium.algorithms.collectives import add_up
from podium.core.errors import ConfigError
from podium.core.types import Fragment, Tree

GRADIENT_UPDATES = "gradient_updates"


def init(algorithm: Algorithm, fragment: Fragment) -> Tree:
    """The store before the first fragment, of which this is one by its shapes."""
    if isinstance(algorithm.experience, Replay):
        return replay.init(algorithm.experience, fragment)
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
    rows = fragment.valid.size * (1 if axis is None else jax.lax.axis_size(axis))
    key = key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis))
    run = _updates(algorithm, store, key, updates_per_fragment(experience, rows), axis)
    enough = add_up(store.steps, axis) >= experience.starts
    _, shapes = jax.eval_shape(run, (train, store.tree, store.top))
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    # The fragments themselves stay outside: a branch that returned them would copy them.
    changed = train, store.tree, store.top
    (train, tree, top), metrics = jax.lax.cond(enough, run, lambda changed: (changed, nothing), changed)
    return train, store._replace(tree=tree, top=top), metrics


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a fragment without those that no update stands behind."""
    if metrics.get(GRADIENT_UPDATES, 1) == 0:
        return {GRADIENT_UPDATES: 0.0}
    return dict(metrics)


def updates_per_fragment(experience: Replay, rows: int) -> int:
    """Updates after each fragment of so many rows (T x B).

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


def _updates(algorithm: Algorithm, store: replay.Buffer, key: jax.Array, count: int, axis: str | None) -> Callable:
    """A function that makes so many updates, each of rows drawn anew; it changes no more than it is given."""
    experience = algorithm.experience
    assert isinstance(experience, Replay)
    devices = 1 if axis is None else jax.lax.axis_size(axis)
    if experience.batch_size % devices:
        raise ConfigError(f"algorithm.batch_size = {experience.batch_size}: must be a multiple of {devices} device(s)")

    def update(carry: tuple, key: jax.Array) -> tuple:
        train, tree, top = carry
        buffer = store._replace(tree=tree, top=top)
        draw_key, learn_key = jax.random.split(key)
        drawn, index = replay.draw(experience, buffer, draw_key, experience.batch_size // devices)
        train, metrics, priorities = algorithm.update(train, drawn, learn_key, axis)
        if tree is not None:
            buffer = replay.reprioritize(experience, buffer, index, priorities)
        return (train, buffer.tree, buffer.top), metrics

    def run(carry: tuple) -> tuple:
        carry, metrics = jax.lax.scan(update, carry, jax.random.split(key, count))
        means = jax.tree.map(jnp.mean, metrics)
        return carry, means | {GRADIENT_UPDATES: jnp.full((), count, jnp.int32)}

    return run
