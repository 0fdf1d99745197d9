"""Orthogonal weights: known properties, and the matrix that is known to be nearest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.networks.orthogonal import composed, nearest_orthogonal, orthogonal


@pytest.mark.parametrize("shape", [(64, 64), (6, 64), (64, 4), (1, 32), (3, 3, 8, 16), (2, 2, 1, 16), (1056, 1050)])
def test_the_shorter_side_is_orthonormal_times_the_scale(shape: tuple[int, ...]) -> None:
    matrix = np.asarray(jax.jit(lambda: orthogonal(1.5)(jax.random.key(0), shape))()).reshape(-1, shape[-1])
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix @ matrix.T, 1.5**2 * np.eye(len(matrix)), atol=1e-4)


def test_it_is_the_nearest_one_as_its_singular_vectors_tell() -> None:
    matrix = np.random.default_rng(0).normal(size=(5, 9)).astype(np.float32)
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(nearest_orthogonal(jnp.asarray(matrix)), u @ v, atol=1e-4)


def test_a_matrix_that_is_almost_singular_is_brought_there_too() -> None:
    u, _, v = np.linalg.svd(np.random.default_rng(1).normal(size=(8, 8)))
    matrix = u @ np.diag([1.0] * 7 + [1e-5]) @ v
    result = np.asarray(nearest_orthogonal(jnp.asarray(matrix, jnp.float32)))
    np.testing.assert_allclose(result @ result.T, np.eye(8), atol=1e-4)


def test_members_of_a_vmap_are_those_made_alone() -> None:
    keys = jax.random.split(jax.random.key(2), 3)
    together = jax.vmap(lambda key: orthogonal()(key, (16, 16)))(keys)
    for key, member in zip(keys, together, strict=True):
        np.testing.assert_allclose(orthogonal()(key, (16, 16)), member, atol=1e-4)


def test_a_large_one_is_composed_of_small_ones_and_dense() -> None:
    matrix = np.asarray(composed(jax.random.key(3), 3, 4))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(12), atol=1e-5)
    assert np.count_nonzero(matrix) == 144
