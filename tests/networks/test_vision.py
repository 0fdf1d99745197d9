"""Pixel networks: convolutions from patches against XLA's own, their gradients, pooling, and one tree of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from podium.core.config import NetworkConfig
from podium.core.specs import Array, Discrete, EnvSpec
from podium.networks import network as networks
from podium.networks import vision

CASES = [(21, 4, 8, 8, 4), (12, 8, 6, 4, 2), (7, 6, 5, 3, 1), (9, 3, 2, 1, 1), (23, 2, 3, 4, 2)]


def picture(height: int, channels: int, images: int = 3, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(channels, images, height, height + 2)), jnp.float32)


@pytest.mark.parametrize(("height", "channels", "outputs", "width", "stride"), CASES)
def test_convolutions_from_patches_are_those_of_xla_and_so_are_their_gradients(
    height, channels, outputs, width, stride
):
    x = picture(height, channels)
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=(width, width, channels, outputs)), jnp.float32)

    def value_and_gradients(convolve):
        def loss(x, kernel):
            y = convolve(x, kernel, stride)
            return jnp.sum(jnp.sin(y)), y

        (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, kernel)
        return y, *gradients

    ours, theirs = value_and_gradients(vision.convolve_patches), value_and_gradients(vision.convolve_natively)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_pictures_taken_in_pieces_give_the_same(monkeypatch):
    x, kernel = picture(9, 2, images=12), jnp.ones((3, 3, 2, 4))
    whole = vision.convolve_patches(x, kernel, 1)
    monkeypatch.setattr(vision, "IMAGES_AT_ONCE", 4)
    np.testing.assert_allclose(vision.convolve_patches(x, kernel, 1), whole, rtol=1e-5)


def test_a_kernel_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="a kernel of 3 is not a multiple of the stride 2"):
        vision.convolve_patches(picture(9, 2), jnp.ones((3, 3, 2, 4)), 2)


@pytest.mark.parametrize("height", [1, 4, 7, 84])
def test_pooling_takes_the_largest_of_nine_as_flax_does(height):
    x = picture(height, 2)
    theirs = nn.max_pool(x.transpose(1, 2, 3, 0), (3, 3), (2, 2), "SAME").transpose(3, 0, 1, 2)
    np.testing.assert_array_equal(vision.max_pool(x), theirs)


@pytest.mark.parametrize("same", [True, False])
def test_a_layer_is_a_flax_layer_with_the_same_parameters(same):
    x = picture(9, 3)
    theirs = nn.Conv(4, (3, 3), padding="SAME" if same else "VALID")
    params = theirs.init(jax.random.key(0), x.transpose(1, 2, 3, 0))
    params["params"]["bias"] = jnp.arange(4.0)
    ours = vision.Conv(4, 3, same=same)
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(0), x)) == jax.tree.map(jnp.shape, params)
    expected = theirs.apply(params, x.transpose(1, 2, 3, 0))
    np.testing.assert_allclose(ours.apply(params, x).transpose(1, 2, 3, 0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["nature", "resnet"])
def test_a_checkpoint_moves_between_cpus_and_accelerators(kind, monkeypatch):
    network = networks.make(NetworkConfig(hidden=(), vision=kind), EnvSpec(Array((36, 36, 2), "uint8"), Discrete(3)), 3)
    obs = jax.random.randint(jax.random.key(1), (2, 2, 36, 36, 2), 0, 256).astype(jnp.uint8)
    params = jax.jit(network.init)(jax.random.key(0))
    first = jnp.zeros((2, 2), bool)
    outputs, value, _ = jax.jit(network.apply)(params, (), obs, first)
    monkeypatch.setattr(vision, "convolve_patches", vision.convolve_natively)
    there = networks.make(NetworkConfig(hidden=(), vision=kind), EnvSpec(Array((36, 36, 2), "uint8"), Discrete(3)), 3)
    shapes = jax.eval_shape(there.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda s: s.shape, shapes)
    outputs_there, value_there, _ = jax.jit(there.apply)(params, (), obs, first)
    np.testing.assert_allclose(outputs, outputs_there, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(value, value_there, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "convolutions", "dense"),
    [("shallow", 2, (2592, 256)), ("nature", 3, (3136, 512)), ("resnet", 15, (3872, 256))],
)
def test_networks_have_the_layers_of_their_papers(kind, convolutions, dense):
    shapes = jax.eval_shape(vision.VISION[kind]().init, jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    kernels = [leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes) if "kernel" in str(path)]
    assert sum(len(shape) == 4 for shape in kernels) == convolutions
    assert [shape for shape in kernels if len(shape) == 2] == [dense]
