"""Convolutional encoders of pixels: the Nature CNN, and IMPALA's shallow network and ResNet; quick on CPUs as well.

Activations are [C, N, H, W], channels first and pictures second. XLA's CPU convolution is slow (its gradient within
a scan takes some 20 times as long), so on CPUs a convolution is a matrix product of kernel and patches; accelerators
have their own. Both take the same parameters, those of flax's `nn.Conv`: a checkpoint moves from one to the other.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.networks.orthogonal import orthogonal

IMAGES_AT_ONCE = 256
"""Patches of so many pictures are in memory at a time; for the Nature CNN, 100 MB."""


class Conv(nn.Module):
    """A convolution of [C, N, H, W] with square kernels: without padding, or (`same`) to the same height and width."""

    features: int
    kernel: int
    stride: int = 1
    same: bool = False
    kernel_init: jax.nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (self.kernel, self.kernel, x.shape[0], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        if self.same:
            before = (self.kernel - 1) // 2
            margin = before, self.kernel - 1 - before
            x = jnp.pad(x, ((0, 0), (0, 0), margin, margin))
        convolve = convolve_patches if jax.default_backend() == "cpu" else convolve_natively
        return convolve(x, kernel, self.stride) + bias[:, None, None, None]


def convolve_natively(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """[C, N, H, W] and kernel [k, k, C, O] to [O, N, h, w], by XLA's own convolution."""
    axes = ("CNHW", "HWIO", "CNHW")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=axes)


def convolve_patches(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """The same as one matrix product [O, k k C] @ [k k C, N h w]; the kernel's width must be a multiple of the stride.

    Of the ways measured (patches or a sum over the kernel's places, of inputs or of products, channels first or
    last) this one had the quickest gradient.
    """
    width, channels, outputs = kernel.shape[0], x.shape[0], kernel.shape[3]
    if width % stride:
        raise ValueError(f"a kernel of {width} is not a multiple of the stride {stride}")
    blocks = width // stride
    # In blocks of stride x stride pixels, taken as channels, the stride is 1.
    kernel = kernel.reshape(blocks, stride, blocks, stride, channels, outputs).transpose(0, 2, 1, 3, 4, 5)
    matrix = kernel.reshape(-1, outputs).T

    def convolve(x: jax.Array) -> jax.Array:
        x = _to_blocks(x, stride)
        images, height, columns = x.shape[1], x.shape[2] - blocks + 1, x.shape[3] - blocks + 1
        places = [(i, j) for i in range(blocks) for j in range(blocks)]
        patches = jnp.concatenate([x[:, :, i : i + height, j : j + columns] for i, j in places])
        return (matrix @ patches.reshape(matrix.shape[1], -1)).reshape(outputs, images, height, columns)

    images = x.shape[1]
    pieces = math.gcd(images, max(1, images // IMAGES_AT_ONCE))
    if pieces == 1:
        return convolve(x)
    y = jax.lax.map(convolve, x.reshape(channels, pieces, -1, *x.shape[2:]).swapaxes(0, 1))
    return y.swapaxes(0, 1).reshape(outputs, images, *y.shape[3:])


def _to_blocks(x: jax.Array, size: int) -> jax.Array:
    """[C, N, H, W] to [size size C, N, H // size, W // size]; what is left over at the edges is cut off."""
    if size == 1:
        return x
    channels, images, height, width = x.shape
    rows, columns = height // size, width // size
    x = x[:, :, : rows * size, : columns * size].reshape(channels, images, rows, size, columns, size)
    return x.transpose(3, 5, 0, 1, 2, 4).reshape(-1, images, rows, columns)


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 3 x 3 pixels of [C, N, H, W], at every second place: [C, N, ⌈H/2⌉, ⌈W/2⌉].

    By slices: the gradient of XLA's window reduction is another of the CPU's slow operations.
    """
    for axis in (2, 3):
        size = x.shape[axis]
        outputs = -(-size // 2)
        left = (2 * outputs + 1 - size) // 2  # as "SAME" pads: the odd one goes to the right
        margins = [(0, 0)] * 4
        margins[axis] = left, 2 * outputs + 1 - size - left
        padded = jnp.pad(x, margins, constant_values=-jnp.inf)
        thirds = [jax.lax.slice_in_dim(padded, i, i + 2 * outputs - 1, 2, axis) for i in range(3)]
        x = jnp.maximum(jnp.maximum(thirds[0], thirds[1]), thirds[2])
    return x


def _to_vectors(x: jax.Array) -> jax.Array:
    """[C, N, H, W] to [N, H W C]."""
    return x.transpose(1, 2, 3, 0).reshape(x.shape[1], -1)


class NatureCNN(nn.Module):
    """Three convolutions and a dense layer (Mnih et al., 2015) over [N, H, W, C] pixels in 0..1.

    Pictures too small for its strides (under 36 pixels) get two 3x3 layers instead.
    """

    layers: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # features, kernel, stride
    width: int = 512

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        large = min(x.shape[-3:-1]) >= 36
        layers = self.layers if large else [(features, 3, 1) for features, _, _ in self.layers[:2]]
        x = x.transpose(3, 0, 1, 2)
        for features, kernel, stride in layers:
            init = orthogonal(2**0.5)
            x = nn.relu(Conv(features, kernel, stride, same=not large, kernel_init=init)(x))
        return nn.relu(nn.Dense(self.width, kernel_init=orthogonal(2**0.5))(_to_vectors(x)))


class ShallowCNN(NatureCNN):
    """The small network of IMPALA (Espeholt et al., 2018), of Mnih et al. (2013): a third of the multiplications."""

    layers: tuple[tuple[int, int, int], ...] = ((16, 8, 4), (32, 4, 2))
    width: int = 256


class Residual(nn.Module):
    """x and what two convolutions make of it."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inner = Conv(x.shape[0], 3, same=True)(nn.relu(x))
        return x + Conv(x.shape[0], 3, same=True)(nn.relu(inner))


class ResNet(nn.Module):
    """The large network of IMPALA (Espeholt et al., 2018): 15 convolutions and a dense layer, over the same pixels."""

    sections: tuple[int, ...] = (16, 32, 32)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.transpose(3, 0, 1, 2)
        for features in self.sections:
            x = max_pool(Conv(features, 3, same=True)(x))
            x = Residual()(Residual()(x))
        return nn.relu(nn.Dense(256)(_to_vectors(nn.relu(x))))


VISION = {"shallow": ShallowCNN, "nature": NatureCNN, "resnet": ResNet}
