"""Minibatches: every item once, random, and the same over one device or eight."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podium.algorithms.minibatches import num_blocks, shuffle, sum_over_chunks


@pytest.mark.parametrize(("items", "minibatches", "blocks"), [(2048, 8, 8), (60, 3, 2), (7, 7, 1), (96, 4, 8)])
def test_every_item_is_drawn_once(items, minibatches, blocks):
    index = shuffle(jax.random.key(3), items, minibatches, blocks, None)
    assert index.shape == (minibatches, items // minibatches)
    assert sorted(np.asarray(index).ravel()) == list(range(items))


def test_each_minibatch_has_an_equal_share_of_each_block():
    index = np.asarray(shuffle(jax.random.key(3), 64, 4, 8, None))
    assert all(np.bincount(row // 8, minlength=8).tolist() == [2] * 8 for row in index)


def test_every_item_is_as_likely_to_come_first():
    draw = jax.jit(jax.vmap(lambda key: shuffle(key, 8, 1, 1, None)[0, 0]))
    counts = np.bincount(draw(jax.random.split(jax.random.key(0), 8000)), minlength=8)
    assert np.abs(counts - 1000).max() < 150  # five standard deviations


def test_eight_devices_draw_the_minibatches_of_one():
    items = np.arange(64)
    mesh = Mesh(np.array(jax.devices()[:8]), ("rows",))

    def draw(items):
        return items[shuffle(jax.random.key(5), 8, 4, 8, "rows")]

    spread = jax.shard_map(
        draw, mesh=mesh, in_specs=PartitionSpec("rows"), out_specs=PartitionSpec(None, "rows"), check_vma=False
    )(items)
    alone = items[shuffle(jax.random.key(5), 64, 4, 8, None)]
    assert np.array_equal(np.sort(spread, axis=1), np.sort(alone, axis=1))


def test_blocks_divide_rows_and_minibatches():
    assert num_blocks(16, 256) == 8
    assert num_blocks(6, 4) == 2
    assert num_blocks(5, 5) == 1


def test_chunks_add_up_to_the_whole():
    rows = {"x": np.arange(24.0).reshape(2, 12)}
    total = sum_over_chunks(lambda part: {"sum": part["x"].sum()}, rows, chunk=8)
    assert float(total["sum"]) == rows["x"].sum()
