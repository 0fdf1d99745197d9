"""Running statistics: the same as NumPy over all rows, whatever the batches, masks and devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podium.core.specs import Array
from podium.ops import statistics

SPEC = {"joints": Array((3,)), "camera": Array((4, 4, 3), "uint8"), "lap": Array((), "int32"), "speed": Array(())}


def observations(rng, *lead):
    return {
        "joints": rng.normal([1.0, -50.0, 3e4], [1.0, 7.0, 2.0], (*lead, 3)).astype(np.float32),
        "camera": rng.integers(0, 256, (*lead, 4, 4, 3), np.uint8),
        "lap": rng.integers(0, 9, lead, np.int32),
        "speed": rng.normal(5.0, 2.0, lead).astype(np.float32),
    }


def assert_statistics_of(stats, rows, rtol=1e-4):
    rows = np.asarray(rows, np.float64)
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stats.var, rows.var(0), rtol=rtol)


@pytest.mark.parametrize("variant", [lambda f: f, jax.jit], ids=["plain", "jitted"])
def test_batches_one_after_another_are_as_all_rows_at_once(variant):
    rng = np.random.default_rng(0)
    batches = [observations(rng, *lead) for lead in [(16, 8), (1, 1), (3, 5)]]
    stats = statistics.init(SPEC)
    for batch in batches:
        stats = variant(statistics.update)(stats, batch)
    assert stats.count == 128 + 1 + 15
    for name, shape in (("joints", (-1, 3)), ("speed", (-1,))):
        rows = np.concatenate([batch[name].reshape(shape) for batch in batches])
        assert_statistics_of(statistics.RunningStatistics(stats.count, stats.mean[name], stats.var[name]), rows)


def test_pictures_are_normalised_pixel_by_pixel_if_asked_for_and_divided_by_255_before_the_first():
    rng = np.random.default_rng(5)
    batch = observations(rng, 200)
    batch["camera"][:, 0, 0, 0] = 87  # never moves
    untouched = statistics.normalize(statistics.update(statistics.init(SPEC), batch), batch)
    assert untouched["camera"] is batch["camera"]
    stats = statistics.init(SPEC, pictures=True)
    np.testing.assert_allclose(statistics.normalize(stats, batch)["camera"], batch["camera"] / 255, atol=1e-6)
    pixels = np.asarray(statistics.normalize(statistics.update(stats, batch), batch)["camera"])
    np.testing.assert_allclose(pixels.mean(0), 0, atol=1e-3)
    assert not pixels[:, 0, 0, 0].any()
    np.testing.assert_allclose(pixels.std(0).ravel()[1:], 1, atol=1e-3)


def test_a_mean_far_from_zero_costs_no_digits():
    rng = np.random.default_rng(1)
    rows = rng.normal(1e4, 1.0, (200, 50)).astype(np.float32)
    stats = statistics.init(Array(()))
    for batch in rows:
        stats = statistics.update(stats, batch)
    assert_statistics_of(stats, rows.reshape(-1), rtol=1e-3)


def test_masked_rows_are_left_out_whatever_they_hold():
    rng = np.random.default_rng(2)
    batch = rng.normal(size=(20, 6, 3)).astype(np.float32)
    valid = rng.random((20, 6)) < 0.6
    dirty = np.where(valid[..., None], batch, np.nan)
    stats = jax.jit(statistics.update)(statistics.init(Array((3,))), dirty, valid)
    assert stats.count == valid.sum()
    assert_statistics_of(stats, batch[valid])


def test_a_weight_of_two_is_a_row_twice():
    rows = jnp.array([1.0, 2.0, 7.0])
    weighted = statistics.update(statistics.init(Array(())), rows, jnp.array([1.0, 2.0, 0.0]))
    repeated = statistics.update(statistics.init(Array(())), jnp.array([1.0, 2.0, 2.0]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), weighted, repeated)


def test_no_valid_rows_change_nothing():
    stats = statistics.update(statistics.init(Array((2,))), jnp.arange(6.0).reshape(3, 2))
    for before in (stats, statistics.init(Array((2,)))):
        after = statistics.update(before, jnp.full((3, 2), jnp.nan), jnp.zeros(3, bool))
        jax.tree.map(np.testing.assert_array_equal, before, after)


def test_rows_over_eight_devices_are_as_on_one():
    assert jax.device_count() == 8
    rng = np.random.default_rng(3)
    batch = observations(rng, 4, 32)
    valid = rng.random((4, 32)) < 0.7
    valid[:, :4] = False  # a device without any valid row
    first = statistics.update(statistics.init(SPEC), observations(rng, 4, 32))
    rows = PartitionSpec(None, "devices")
    sharded = jax.jit(
        jax.shard_map(
            partial(statistics.update, axis_name="devices"),
            mesh=Mesh(np.array(jax.devices()), ("devices",)),
            in_specs=(PartitionSpec(), rows, rows),
            out_specs=PartitionSpec(),
        )
    )(first, batch, valid)
    single = statistics.update(first, batch, valid)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), sharded, single)


def test_normalised_rows_have_mean_0_and_deviation_1():
    rng = np.random.default_rng(4)
    batch = observations(rng, 500)
    normal = statistics.normalize(statistics.update(statistics.init(SPEC), batch), batch)
    np.testing.assert_allclose(normal["joints"].mean(0), 0, atol=2e-3)
    np.testing.assert_allclose(normal["joints"].std(0), 1, atol=2e-3)


def test_integers_and_images_pass_through():
    rng = np.random.default_rng(5)
    batch = observations(rng, 10)
    stats = statistics.update(statistics.init(SPEC), batch)
    for out in (statistics.normalize(stats, batch), statistics.scale(stats, batch)):
        assert out["camera"] is batch["camera"]
        assert out["lap"] is batch["lap"]
    images = statistics.init(Array((4, 4, 3), "uint8"))
    assert statistics.update(images, batch["camera"]) is images


def test_before_the_first_row_normalising_does_nothing():
    x = jnp.array([[1.0, -2.0]])
    stats = statistics.init(x[0])
    np.testing.assert_allclose(statistics.normalize(stats, x), x, rtol=1e-6)
    np.testing.assert_allclose(statistics.scale(stats, x), x, rtol=1e-6)


def test_results_are_clipped():
    stats = statistics.init(Array(()))
    np.testing.assert_allclose(statistics.normalize(stats, jnp.array([-99.0, 3.0, 99.0])), [-10, 3, 10], rtol=1e-6)
    np.testing.assert_allclose(statistics.scale(stats, jnp.array([-99.0, 3.0]), clip=2.0), [-2, 2])


def test_scaling_keeps_sign_and_zero():
    stats = statistics.update(statistics.init(Array(())), jnp.array([10.0, 14.0]))
    np.testing.assert_allclose(statistics.scale(stats, jnp.array([-4.0, 0.0, 2.0])), [-2, 0, 1], rtol=1e-6)


def test_an_input_that_never_moves_is_normalised_to_0():
    stats = statistics.init(Array(()))
    for _ in range(100):
        stats = statistics.update(stats, jnp.full((7, 3), 12345.678))
    np.testing.assert_array_equal(statistics.normalize(stats, jnp.full(4, 12345.678)), 0)


def test_statistics_of_two_parts_join_by_their_counts():
    stats = statistics.update(statistics.init(Array(())), jnp.zeros(3))
    stats = statistics.update(stats, jnp.array([4.0]))
    assert (stats.count, stats.mean, stats.var) == (4.0, 1.0, 3.0)
