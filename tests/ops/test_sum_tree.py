"""The sum tree against NumPy's cumulative sums: it draws by weight, and what has none is never drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.ops import sum_tree

put, draw = jax.jit(sum_tree.put), jax.jit(sum_tree.draw)


def tree_of(weights: np.ndarray) -> jax.Array:
    return put(sum_tree.init(len(weights)), jnp.arange(len(weights)), jnp.asarray(weights, jnp.float32))


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_points_fall_where_the_cumulative_sum_says(size):
    rng = np.random.default_rng(size)
    # Whole numbers, so that both sums are exact; some are 0.
    weights = rng.integers(0, 5, size).astype(np.float64)
    weights[size // 2] += 1
    total = weights.sum()
    points = (np.arange(int(total)) + 0.5) / total
    expected = np.searchsorted(np.cumsum(weights), points * total, side="right")
    assert np.array_equal(draw(tree_of(weights), jnp.asarray(points, jnp.float32)), expected)


def test_every_inner_number_is_the_sum_of_its_children_after_many_changes():
    rng = np.random.default_rng(0)
    tree, weights = sum_tree.init(100), np.zeros(100, np.float32)
    for _ in range(50):
        leaves = rng.choice(100, 16, replace=False)
        weights[leaves] = new = rng.uniform(0, 3, 16).astype(np.float32)
        tree = put(tree, jnp.asarray(leaves), jnp.asarray(new))
    inner = np.asarray(tree)
    assert np.array_equal(inner[1:128], inner[2:256:2] + inner[3:256:2])
    assert np.array_equal(sum_tree.weights(tree, jnp.arange(100)), weights)
    np.testing.assert_allclose(sum_tree.total(tree), weights.sum(dtype=np.float64), rtol=1e-6)


def test_a_leaf_given_twice_keeps_one_of_its_weights_and_the_sums_stay_right():
    tree = put(tree_of(np.ones(8)), jnp.array([3, 3, 5]), jnp.array([4.0, 4.0, 0.0]))
    assert float(sum_tree.total(tree)) == 6 + 4
    inner = np.asarray(tree)
    assert np.array_equal(inner[1:8], inner[2:16:2] + inner[3:16:2])


def test_what_is_put_nowhere_changes_nothing():
    tree = tree_of(np.arange(1, 7))
    after = put(tree, jnp.array([sum_tree.NOBODY, 2, sum_tree.NOBODY]), jnp.array([100.0, 9.0, jnp.nan]))
    assert np.array_equal(sum_tree.weights(after, jnp.arange(6)), [1, 2, 9, 4, 5, 6])
    assert float(sum_tree.total(after)) == 27


def test_leaves_without_weight_are_never_drawn_whatever_the_rounding():
    rng = np.random.default_rng(1)
    weights = np.where(rng.random(300) < 0.5, 0.0, rng.uniform(1e-6, 1e3, 300))
    ends = np.nextafter(np.linspace(0, 1, 5001, dtype=np.float32), np.float32(0))
    for points in (np.linspace(0, 1, 5001), np.maximum(ends, 0), rng.random(5000)):
        hit = np.asarray(draw(tree_of(weights), jnp.asarray(points, jnp.float32)))
        assert np.all(weights[hit] > 0)
