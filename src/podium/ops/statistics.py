"""Running mean and variance of trees of arrays, to normalise observations and to scale rewards.

    stats = init(spec.observation)
    stats = update(stats, fragment.obs, valid)       # in the learner
    obs = normalize(stats, obs)                      # wherever the policy acts

With `pictures`, bytes are normalised pixel by pixel: what never moves is 0 then, and what moves seldom stands out.
Other integers have a scale of their own: such leaves are passed through untouched.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.types import Tree

# Added to the variance: an input that never moves is divided by 1e-4, not by 0.
EPSILON = 1e-8
BRIGHTEST = 255.0


class RunningStatistics(NamedTuple):
    """Mean and variance of `count` rows. Before the first row they are 0 and 1, so that normalising does nothing; bytes
    are in units of the brightest one then.

    `mean` and `var` are trees like the observation, with a scalar in the place of a leaf that is passed
    through. The count is a float: from 2**24 on it is rounded, and no integer overflows.
    """

    count: jax.Array  # float32[]  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.count)
    mean: Tree  # float32[*shape]
    var: Tree  # float32[*shape], of the population: divided by count


def init(spec: Tree, pictures: bool = False) -> RunningStatistics:
    """Statistics of no rows, of floats and, if asked for, bytes. `spec`: a tree of anything with a shape (without batch
    axes) and a dtype.

    init(Array((4,)))    init({"camera": Array((84, 84, 3), "uint8"), "joints": Array((7,))})    init(jnp.zeros(()))
    """

    def fill(leaf: Tree, value: float) -> jax.Array:
        counts = _is_float(leaf) or (pictures and _is_bytes(leaf))
        return jnp.full(tuple(leaf.shape) if counts else (), value, jnp.float32)

    return RunningStatistics(
        count=jnp.zeros((), jnp.float32),
        mean=jax.tree.map(lambda leaf: fill(leaf, 0.0), spec),
        var=jax.tree.map(lambda leaf: fill(leaf, BRIGHTEST**2 if _is_bytes(leaf) else 1.0), spec),
    )


def update(
    stats: RunningStatistics, batch: Tree, valid: jax.Array | None = None, axis_name: str | None = None
) -> RunningStatistics:
    """Statistics of the rows so far and those of `batch` [..., *shape] together.

    `valid` [...] says which rows count (bool), or how much (float); rows of weight 0 may hold anything,
    NaN too. With `axis_name`, rows are sharded over that mapped axis, and every shard gets the result
    for all of them.

    Two sets of rows with counts n_a, n_b, means a, b and variances s_a, s_b merge exactly (Chan et al.,
    1979); with w = n_b / (n_a + n_b),

        mean = a + w (b - a)
        var  = (1 - w) s_a + w s_b + w (1 - w) (b - a)²

    in which no number grows with the count, as a sum of squares would.
    """
    leaves, treedef = jax.tree.flatten(batch)
    means, variances = treedef.flatten_up_to(stats.mean), treedef.flatten_up_to(stats.var)
    chosen = [i for i, leaf in enumerate(leaves) if _is_normalized(leaf, means[i])]
    if not chosen:
        return stats
    rows = [leaves[i].astype(jnp.float32) for i in chosen]
    if valid is None:
        valid = jnp.ones(rows[0].shape[: rows[0].ndim - means[chosen[0]].ndim], bool)
    count_b, means_b, variances_b = _moments(rows, valid, axis_name)
    count = stats.count + count_b
    w = jnp.where(count > 0, count_b / jnp.where(count > 0, count, 1.0), 0.0)
    for i, mean_b, var_b in zip(chosen, means_b, variances_b, strict=True):
        difference = mean_b - means[i]
        means[i] = means[i] + w * difference
        variances[i] = (1 - w) * variances[i] + w * var_b + w * (1 - w) * difference**2
    return RunningStatistics(count, treedef.unflatten(means), treedef.unflatten(variances))


def normalize(stats: RunningStatistics, x: Tree, clip: float = 10.0) -> Tree:
    """(x - mean) / standard deviation, within ±clip, for every leaf of floats or bytes of x [..., *shape]."""

    def leaf(x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        return jnp.clip((x - mean) * jax.lax.rsqrt(var + EPSILON), -clip, clip) if _is_normalized(x, mean) else x

    return jax.tree.map(leaf, x, stats.mean, stats.var)


def scale(stats: RunningStatistics, x: Tree, clip: float = 10.0) -> Tree:
    """x / standard deviation, within ±clip: for rewards, whose sign and zero must stay.

    returns = update(returns, fragment.discounted, fragment.valid)
    reward = scale(returns, fragment.reward)
    """

    def leaf(x: jax.Array, var: jax.Array) -> jax.Array:
        return jnp.clip(x * jax.lax.rsqrt(var + EPSILON), -clip, clip) if _is_float(x) else x

    return jax.tree.map(leaf, x, stats.var)


def _moments(
    rows: list[jax.Array], valid: jax.Array, axis_name: str | None
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """Count, means and variances of the valid rows of each array, over all shards.

    Two passes: a mean, then how far rows are from it. What that mean lost to rounding is seen in the
    second pass as a mean distance other than 0, and is put right. Values like 1e4 ± 1 need it in float32.
    """
    weight = valid.astype(jnp.float32)
    lead = tuple(range(weight.ndim))

    def total(tree: Tree) -> Tree:
        return tree if axis_name is None else jax.lax.psum(tree, axis_name)

    def weigh(x: jax.Array) -> jax.Array:
        w = weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim))
        return jnp.sum(jnp.where(w > 0, w * x, 0.0), axis=lead)

    count, sums = total((jnp.sum(weight), [weigh(x) for x in rows]))
    share = jnp.where(count > 0, 1.0 / jnp.where(count > 0, count, 1.0), 0.0)
    rough = [s * share for s in sums]
    distances = [x - mean for x, mean in zip(rows, rough, strict=True)]
    firsts, seconds = total(([weigh(d) for d in distances], [weigh(d**2) for d in distances]))
    means = [mean + first * share for mean, first in zip(rough, firsts, strict=True)]
    variances = [jnp.maximum(s * share - (f * share) ** 2, 0.0) for f, s in zip(firsts, seconds, strict=True)]
    return count, means, variances


def _is_normalized(leaf: jax.Array, mean: jax.Array) -> bool:
    """Whether a leaf is one that these statistics are of."""
    return _is_float(leaf) or (_is_bytes(leaf) and mean.ndim > 0)


def _is_float(leaf: Tree) -> bool:
    return jnp.issubdtype(np.dtype(leaf.dtype), jnp.floating)


def _is_bytes(leaf: Tree) -> bool:
    return np.dtype(leaf.dtype) == np.uint8
