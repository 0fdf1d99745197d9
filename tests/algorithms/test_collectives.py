"""What devices do together: sums that are exact, items in order, jobs done once and known to all."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podium.algorithms.collectives import add_up, do_one_each, gather


def over(devices: int, function: Callable) -> np.ndarray:
    """What each device has after it, [devices, ...]."""

    def on_each(number: jax.Array) -> jax.Array:
        return jax.tree.map(lambda x: x[None], function(number[0]))

    mesh, rows = Mesh(np.array(jax.devices()[:devices]), ("rows",)), PartitionSpec("rows")
    mapped = jax.shard_map(on_each, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return jax.jit(mapped)(jnp.arange(devices))


def test_a_tree_of_several_dtypes_is_added_up_exactly():
    large = 2**24 + 1  # what float32 cannot hold
    sums = over(2, lambda i: add_up({"count": large * i, "x": jnp.full((2, 3), 0.5), "y": 1.0 * i}, "rows"))
    assert sums["count"].tolist() == [large, large]
    assert sums["count"].dtype == jnp.int32
    assert sums["x"].tolist() == np.ones((2, 2, 3)).tolist()
    assert sums["y"].tolist() == [1.0, 1.0]


def test_without_an_axis_there_is_nothing_to_add():
    assert add_up({"x": 3.0}, None) == {"x": 3.0}


def test_items_are_gathered_in_the_order_of_the_devices():
    items = over(4, lambda i: gather(2 * i + jnp.arange(2), "rows"))
    assert items.tolist() == 4 * [list(range(8))]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_every_device_has_the_results_of_all_jobs(devices):
    def work(i: jax.Array) -> list:
        return do_one_each([lambda: {"a": jnp.arange(3), "by": i}, lambda: (jnp.float32(0.5), i)], "rows")

    first, (half, by) = over(devices, work)
    assert first["a"].tolist() == devices * [[0, 1, 2]]
    assert half.tolist() == devices * [0.5]
    if devices > 1:  # the first job by device 0, the second by device 1, and nothing by others
        assert first["by"].tolist() == devices * [0]
        assert by.tolist() == devices * [1]
