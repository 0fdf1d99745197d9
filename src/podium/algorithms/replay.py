"""The replay buffer: fragments of the past in a ring of arrays, and rows drawn from them. Pure functions.

    buffer = replay.init(experience, fragment)           # a fragment of the shape to come
    buffer = replay.add(experience, buffer, fragment)
    drawn, index = replay.draw(experience, buffer, key, batch_size)
    buffer = replay.reprioritize(experience, buffer, index, priorities)

A fragment holds its own last observation, so that nothing is lost when another one of its environments never came.
In the learner's process the buffer is part of what a dispatch changes; a replay worker jits the same functions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.algorithms.algorithm import Drawn, Replay, Transitions
from podium.core.errors import ConfigError
from podium.core.types import Fragment, Tree
from podium.ops import sum_tree

SMALL = 1e-6
"""Added to priorities, so that nothing is never drawn again."""


class ReplayBuffer(NamedTuple):
    """Room for N fragments [N, T, B, ...], the newest in the place of the oldest."""

    fragments: Fragment
    added: jax.Array  # fragments since the start: the next one goes to `added` % N
    steps: jax.Array  # valid steps added, counted until there are enough to start from
    owed: jax.Array  # part of an update that the steps so far ask for beyond those that were made
    tree: Any  # of the priorities of rows, or None where all are drawn alike
    top: jax.Array  # the greatest priority so far: that of what is new


def num_fragments(experience: Replay, rows: int, devices: int = 1) -> int:
    """How many fragments of so many rows a buffer holds, if so many devices have one each.

    >>> num_fragments(Replay(length=8, discount=0.99, batch_size=1, capacity=100, starts=0, ratio=1), rows=4)
    3
    """
    size = experience.capacity // (experience.length * rows * devices)
    if size < 1:
        raise ConfigError(
            f"algorithm.buffer_size = {experience.capacity}: must hold at least one fragment of "
            f"{experience.length} steps x {rows * devices} environments"
        )
    return size


def init(experience: Replay, fragment: Fragment, devices: int = 1) -> ReplayBuffer:
    """An empty buffer for fragments like this one (its shapes and dtypes are looked at only)."""
    kept = _keep(experience, fragment)
    rows = fragment.valid.shape[1]
    size = num_fragments(experience, rows, devices)
    fragments = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), kept)
    leaves = size * rows * (1 if experience.sequences else experience.length)
    tree = sum_tree.init(leaves) if experience.priority_exponent else None
    # Each has zeros of its own: a buffer is changed in place, where no array may be two of its parts.
    added, steps, owed = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros(())
    return ReplayBuffer(fragments, added, steps, owed, tree, jnp.ones(()))


def add(experience: Replay, buffer: ReplayBuffer, fragment: Fragment) -> ReplayBuffer:
    """The fragment in the place of the oldest one, or of none."""
    kept = _keep(experience, fragment)
    size = buffer.fragments.valid.shape[0]
    position = buffer.added % size
    fragments = jax.tree.map(
        lambda into, x: jax.lax.dynamic_update_index_in_dim(into, x.astype(into.dtype), position, 0),
        buffer.fragments,
        kept,
    )
    tree = buffer.tree
    if tree is not None:
        valid = jnp.any(fragment.valid, axis=0) if experience.sequences else fragment.valid
        leaves = position * valid.size + jnp.arange(valid.size)
        tree = sum_tree.put(tree, leaves, jnp.where(valid.ravel(), buffer.top, 0.0))
    return buffer._replace(
        fragments=fragments,
        added=buffer.added + 1,
        # Not counted on for ever: a run of 2^31 steps would begin again.
        steps=jnp.minimum(buffer.steps + jnp.sum(fragment.valid, dtype=jnp.int32), experience.starts),
        tree=tree,
    )


def rows_per_fragment(experience: Replay, buffer: ReplayBuffer) -> int:
    """How many rows a fragment gives: steps, or sequences. Row i is of the fragment in place i // rows_per_fragment."""
    _, length, columns = buffer.fragments.valid.shape
    return columns * (1 if experience.sequences else length)


def draw(
    experience: Replay, buffer: ReplayBuffer, key: jax.Array, batch: int, axis: str | None = None
) -> tuple[Drawn, jax.Array]:
    """Rows with their weights, and their places for `reprioritize`. The buffer must hold a fragment."""
    rows, share, index = draw_shares(experience, buffer, key, batch)
    return Drawn(rows, weigh(experience, share, axis)), index


def draw_shares(
    experience: Replay, buffer: ReplayBuffer, key: jax.Array, batch: int
) -> tuple[Transitions | Fragment, jax.Array, jax.Array]:
    """Rows, P(i) of each for `weigh`, and their places: for batches that are yet to be joined with those of others."""
    per_fragment = rows_per_fragment(experience, buffer)
    size, _, columns = buffer.fragments.valid.shape
    if buffer.tree is None:
        index = jax.random.randint(key, (batch,), 0, jnp.minimum(buffer.added, size) * per_fragment)
    else:
        # One of each of `batch` equal parts of the total: fewer repetitions than independent draws.
        index = sum_tree.draw(buffer.tree, (jnp.arange(batch) + jax.random.uniform(key, (batch,))) / batch)
    number, place = index // per_fragment, index % per_fragment
    if experience.sequences:
        picked = _pick_sequences(buffer.fragments, number, place)
        valid = jnp.any(picked.valid, axis=0)
    else:
        step, column = place // columns, place % columns
        picked = _pick_transitions(buffer.fragments, experience.n_step, number, step, column)
        valid = buffer.fragments.valid[number, step, column]
    return picked, _shares(buffer, index, valid), index


def weigh(experience: Replay, share: jax.Array, axis: str | None = None) -> jax.Array:
    """P(i)^-beta, over the greatest of the whole batch (Schaul et al., 2016); 0 for reset rows.

    P(i) is a row's share of its own buffer's total, whatever the totals of the others are: each of S buffers gives
    as many rows of a batch, so that row i comes at the rate P(i) / S, and S drops out.
    """
    if not experience.priority_exponent:
        return share
    counts = share > 0
    least = jnp.min(jnp.where(counts, share, jnp.inf))
    least = least if axis is None else jax.lax.pmin(least, axis)
    return jnp.where(counts, (least / share) ** experience.priority_correction, 0.0)


def reprioritize(
    experience: Replay, buffer: ReplayBuffer, index: jax.Array, priorities: jax.Array, known: jax.Array | None = None
) -> ReplayBuffer:
    """New priorities, such as absolute errors, of rows drawn from this buffer, or of those `known` of them."""
    if buffer.tree is None:
        return buffer
    # What was never to be drawn (a reset row) stays so.
    known = (sum_tree.weights(buffer.tree, index) > 0) & (True if known is None else known)
    raised = jnp.where(known, (jnp.abs(priorities) + SMALL) ** experience.priority_exponent, 0.0)
    tree = sum_tree.put(buffer.tree, jnp.where(known, index, sum_tree.NOBODY), raised)
    return buffer._replace(tree=tree, top=jnp.maximum(buffer.top, jnp.max(raised)))


def _shares(buffer: ReplayBuffer, index: jax.Array, valid: jax.Array) -> jax.Array:
    """P(i), or 1 where all are drawn alike; 0 for reset rows."""
    if buffer.tree is None:
        return valid.astype(jnp.float32)
    return jnp.where(valid, sum_tree.weights(buffer.tree, index) / sum_tree.total(buffer.tree), 0.0)


def _keep(experience: Replay, fragment: Fragment) -> Fragment:
    """What rows are made of: without what only on-policy updates look at."""
    kept = fragment._replace(extras=(), discounted=None, version=None)
    return kept if experience.sequences else kept._replace(first=None, memory=())


def _pick_sequences(fragments: Fragment, number: jax.Array, row: jax.Array) -> Fragment:
    """Whole columns: [T, b, ...], memory [b, ...]."""
    columns = jax.tree.map(lambda x: jnp.swapaxes(x[number, :, row], 0, 1), fragments._replace(memory=()))
    return columns._replace(memory=jax.tree.map(lambda x: x[number, row], fragments.memory))


def _pick_transitions(
    fragments: Fragment, n_step: int, number: jax.Array, step: jax.Array, row: jax.Array
) -> Transitions:
    """Steps with the n - 1 that follow, as far as their episode and their fragment go."""
    length = fragments.valid.shape[1]

    def at(x: jax.Array, offset: jax.Array | int) -> jax.Array:
        return x[number, step + offset, row]

    alive, terminated = jnp.ones(number.shape, bool), jnp.zeros(number.shape, bool)
    steps, rewards = jnp.zeros(number.shape, jnp.int32), []
    for offset in range(n_step):
        alive = alive & (step + offset < length)
        rewards.append(jnp.where(alive, at(fragments.reward, offset), 0.0))
        ends = at(fragments.terminated, offset)
        terminated, steps = terminated | (alive & ends), steps + alive
        alive = alive & ~ends & ~at(fragments.truncated, offset)

    def pick(tree: Tree, offset: jax.Array | int) -> Tree:
        return jax.tree.map(lambda x: at(x, offset), tree)

    return Transitions(
        obs=pick(fragments.obs, 0),
        mask=pick(fragments.mask, 0),
        action=pick(fragments.action, 0),
        rewards=jnp.stack(rewards, axis=1),
        steps=steps,
        terminated=terminated,
        next_obs=pick(fragments.obs, steps),
        next_mask=pick(fragments.mask, steps),
    )
