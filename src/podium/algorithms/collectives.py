"""What the devices that share a fragment's rows do together. `axis` is None where there is one device."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from podium.core.types import Tree

# On the CPU, meeting takes as long as the second core saves, unless each has this many rows to train on in between: of
# a minibatch where devices share it and add up gradients, of all epochs where each trains a part by itself.
ROWS_PER_CORE = 4096


def add_up(tree: Tree, axis: str | None) -> Tree:
    """The sum over devices, as one array for each dtype: twenty small sums would cost twenty meetings."""
    if axis is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    sums = list(leaves)
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        places = [place for place, leaf in enumerate(leaves) if leaf.dtype == dtype]
        total = jax.lax.psum(jnp.concatenate([leaves[place].ravel() for place in places]), axis)
        end = 0
        for place in places:
            begin, end = end, end + leaves[place].size
            sums[place] = total[begin:end].reshape(leaves[place].shape)
    return jax.tree.unflatten(structure, sums)


def gather(items: Tree, axis: str) -> Tree:
    """The items [n, ...] of all devices [devices * n, ...], in the order of the devices."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis, tiled=True), items)


def do_one_each(jobs: Sequence[Callable[[], Tree]], axis: str) -> list[Tree]:
    """Device 0 does the first job, device 1 the second, and so on; then every device has every result.

    policy, value = do_one_each([train_policy, train_value], "rows")

    Jobs must not meet (reduce over the axis): the other devices are not in them.
    """
    if jax.lax.axis_size(axis) < len(jobs):
        return [job() for job in jobs]
    shapes = [jax.eval_shape(job) for job in jobs]

    def do(number: int) -> list[Tree]:
        """Zeros in the place of what others do, so that the sum over devices is all of it."""
        return [jobs[i]() if i == number else _zeros(shape) for i, shape in enumerate(shapes)]

    # Beyond the last job there is nothing left to do.
    choice = jnp.minimum(jax.lax.axis_index(axis), len(jobs))
    mine = jax.lax.switch(choice, [lambda number=number: do(number) for number in range(len(jobs) + 1)])
    return add_up(mine, axis)


def _zeros(shapes: Tree) -> Tree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
