"""The steps of a fragment with their advantages: whole [T, B, ...], as items to shuffle, and as rows of a minibatch.

items = to_items(steps, recurrent)                       # once an update
rows = to_rows(jax.tree.map(lambda x: x[index], items), recurrent)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.algorithms.collectives import add_up
from podium.core.types import Tree
from podium.ops.masking import zero_where


class Steps(NamedTuple):
    """Steps of a fragment, with what the update computed for them."""

    obs: Tree
    first: jax.Array
    mask: jax.Array | None
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    value: jax.Array
    outputs: Any  # of the policy before the update, for the KL penalty
    weight: jax.Array  # 1, in a reset row and in a stale one 0; in a minibatch they add up to 1
    memory: Tree

    def mean(self, x: jax.Array) -> jax.Array:
        """These rows' part of the minibatch's mean of x: parts add up, over chunks and over devices."""
        return jnp.sum(x * self.weight)


def to_items(steps: Steps, recurrent: bool) -> Steps:
    """[T, B, ...] to what is shuffled, along the first axis: sequences [B, T, ...] or single steps [B * T, ...].

    Environments stay together, and so do the blocks of `minibatches.shuffle`.
    """
    # What is weighed by 0 is left out too: it may be NaN. Not so what memory is made of: a stale row has a past and a
    # future that may be neither.
    whole = zero_where(steps.weight == 0, steps._replace(memory=()))
    items = jax.tree.map(lambda x: x.swapaxes(0, 1), whole._replace(obs=steps.obs, first=steps.first))
    if not recurrent:
        items = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
    return items._replace(memory=steps.memory)


def to_rows(items: Steps, recurrent: bool) -> Steps:
    """Items of a minibatch as [T, b, ...] again, memory as [1, b, ...]; single steps are fragments of length 1."""
    rows = jax.tree.map(lambda x: x.swapaxes(0, 1) if recurrent else x[None], items._replace(memory=()))
    return rows._replace(memory=jax.tree.map(lambda m: m[None], items.memory))


def weigh(items: Steps, index: jax.Array, normalize: bool, axis: str | None) -> tuple[jax.Array, jax.Array]:
    """Weights that add up to 1 over each minibatch index[i], and its advantages, normalised over it if wished.

    For all minibatches of an epoch at once: in the loop, each sum over devices would cost as much as a layer.
    """
    weight, advantage = items.weight[index], items.advantage[index]
    inner = tuple(range(1, weight.ndim))

    def total(x: jax.Array) -> jax.Array:
        return add_up(jnp.sum(x, axis=inner, keepdims=True), axis)

    weight = weight / jnp.maximum(total(weight), 1.0)
    if normalize:
        advantage = advantage - total(advantage * weight)
        advantage = advantage / (jnp.sqrt(total(advantage**2 * weight)) + 1e-8)
    return weight, advantage


def explained_variance(steps: Steps, axis: str | None) -> jax.Array:
    """1 - Var(target - value) / Var(target): 1 is a perfect critic, 0 a useless one."""
    valid = steps.weight > 0
    count = jnp.maximum(add_up(jnp.sum(valid), axis), 1)

    def variance(x: jax.Array) -> jax.Array:
        x = jnp.where(valid, x, 0)
        centred = jnp.where(valid, x - add_up(jnp.sum(x), axis) / count, 0)
        return add_up(jnp.sum(centred**2), axis) / count

    return 1 - variance(steps.target - steps.value) / (variance(steps.target) + 1e-8)
