"""Leaves are named, copied, checked and put back as what they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from podium.core.errors import CheckpointError
from podium.runs.leaves import check_fit, copy_leaves, describe_leaves, params_digest, put_leaves


def test_a_copy_outlives_the_donated_buffer() -> None:
    x = jnp.arange(1000.0)
    (copied,) = copy_leaves({"x": x})
    jax.jit(lambda y: y * 0 - 1, donate_argnums=0)(x).block_until_ready()
    np.testing.assert_array_equal(copied, np.arange(1000.0, dtype=np.float32))


def test_a_copy_does_not_follow_a_numpy_array() -> None:
    x = np.zeros(3)
    (copied,) = copy_leaves(x)
    x += 1
    assert copied.tolist() == [0, 0, 0]


def test_digest_depends_on_every_bit_shape_and_dtype_but_not_on_where_it_lies() -> None:
    x = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2)}
    same = {"a": jnp.arange(6, dtype=jnp.float32), "b": np.zeros(2)}
    assert params_digest(x) == params_digest(same)
    others = [
        {**x, "a": np.nextafter(x["a"], 9)},
        {**x, "a": x["a"].reshape(2, 3)},
        {**x, "a": x["a"].view(np.int32)},
        {**x, "b": np.array([0.0, -0.0])},
    ]
    assert len({params_digest(tree) for tree in [x, *others]}) == 5


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"a": jnp.zeros((2, 4)), "n": 1}, r"leaf \['a'\] is float32\[2, 3\].*needs float32\[2, 4\]"),
        ({"a": jnp.zeros((2, 3), jnp.bfloat16), "n": 1}, r"leaf \['a'\] is float32.*needs bfloat16"),
        ({"a": jnp.zeros((2, 3)), "n": 1, "z": 2}, r"has no leaf \['z'\]"),
        ({"a": jnp.zeros((2, 3))}, r"has a leaf \['n'\]"),
        ({"a": (jnp.zeros((2, 3)),), "n": 1}, r"no leaf \['a'\]\[0\]"),
    ],
)
def test_a_tree_that_does_not_fit_names_the_leaf(template: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_fit(describe_leaves({"a": jnp.zeros((2, 3)), "n": 1}), template)


def test_a_leaf_that_is_no_number_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"\['name'\] is a str"):
        describe_leaves({"name": "x"})


def test_arrays_go_back_to_the_devices_of_the_template() -> None:
    mesh = jax.make_mesh((2,), ("rows",), devices=jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    template = {
        "rows": jax.device_put(jnp.arange(8.0), sharding),
        "keys": jax.device_put(jax.random.split(jax.random.key(0), 8), sharding),
        "free": jnp.zeros(3),
    }
    back = put_leaves(template, describe_leaves(template), copy_leaves(template))
    assert back["rows"].sharding == sharding
    assert back["keys"].sharding == template["keys"].sharding
    assert not back["free"].committed
    assert params_digest(back) == params_digest(template)


def test_weak_types_stay_weak_so_that_nothing_is_promoted_otherwise() -> None:
    tree = {"weak": jnp.asarray(0.5), "strong": jnp.float32(0.5)}
    back = put_leaves(tree, describe_leaves(tree), copy_leaves(tree))
    assert back["weak"].weak_type
    assert not back["strong"].weak_type
