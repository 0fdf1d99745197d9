"""The built-in actor-critic: encoders for vectors and images, an optional recurrent core, two heads.

Vectors without memory get two separate networks, as is usual for PPO on control tasks; images and
recurrent cores are shared by policy and value.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.types import Tree
from podium.networks.network import Network, find_images, zeros_like_spec
from podium.networks.orthogonal import orthogonal
from podium.networks.recurrent import CORES
from podium.networks.vision import VISION

FEW = 8
"""So few inputs are added up one by one."""
ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "elu": nn.elu}


class Encoder(nn.Module):
    """An observation tree [T, B, ...] to features [T, B, n]: images by convolution, all else flattened.

    Images are bytes, or floats if they have been normalised.
    """

    images: Sequence[bool]
    vision: str = "nature"

    @nn.compact
    def __call__(self, obs: Tree) -> jax.Array:
        features = []
        for leaf, is_image in zip(jax.tree.leaves(obs), self.images, strict=True):
            if is_image:
                pixels = leaf.reshape(-1, *leaf.shape[2:]).astype(jnp.float32)
                pixels = pixels / 255 if leaf.dtype == jnp.uint8 else pixels
                features.append(VISION[self.vision]()(pixels).reshape(*leaf.shape[:2], -1))
            else:
                features.append(leaf.reshape(*leaf.shape[:2], -1).astype(jnp.float32))
        return jnp.concatenate(features, axis=-1) if len(features) > 1 else features[0]


class Dense(nn.Module):
    """A layer over activations [in, N], features first, to [out, N].

    On the CPU the three matrix products of such a layer and its gradient take two thirds of the time that
    rows-first ones do, since each then sums along the axis that lies contiguous in memory.
    """

    features: int
    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", orthogonal(self.scale), (self.features, x.shape[0]))
        bias = self.param("bias", nn.initializers.zeros, (self.features, 1))
        product = times_vector(kernel, x[:, 0])[:, None] if x.shape[1] == 1 else kernel @ x
        return product + bias


def times_vector(kernel: jax.Array, x: jax.Array) -> jax.Array:
    """kernel [out, in] times x [in]: under `vmap`, as individuals of a population act, less than half the time of
    `@`."""
    if len(x) <= FEW:
        return sum(kernel[:, i] * x[i] for i in range(1, len(x))) + kernel[:, 0] * x[0]
    return jax.lax.dot_general(x, kernel, (((0,), (1,)), ((), ())))


class MLP(nn.Module):
    """Hidden layers over [in, N], each followed by the activation."""

    hidden: Sequence[int]
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](Dense(width, 2**0.5)(x))
        return x


class Tower(nn.Module):
    """Hidden layers over [in, N], and a linear one to [outputs, N]."""

    hidden: Sequence[int]
    activation: str
    outputs: int
    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = MLP(self.hidden, self.activation, name="hidden")(x)
        return Dense(self.outputs, self.scale, name="head")(x)


class ActorCritic(nn.Module):
    """Policy outputs and value of observations [T, B, ...]."""

    config: NetworkConfig
    num_outputs: int
    images: Sequence[bool]
    shared: bool

    @nn.compact
    def __call__(self, memory: Tree, obs: Tree, first: jax.Array) -> tuple[jax.Array, jax.Array, Tree]:
        features = Encoder(self.images, self.config.vision, name="encoder")(obs).reshape(first.size, -1).T
        hidden, value_hidden, activation = self.config.hidden, self.config.critic_hidden, self.config.activation
        if self.shared:
            features, hidden, value_hidden = MLP(hidden, activation, name="torso")(features), (), ()
        if self.config.memory != "none":
            core = CORES[self.config.memory](self.config.memory_size, name="core")
            memory, features = core(memory, features.T.reshape(*first.shape, -1), first)
            features = features.reshape(first.size, -1).T
        outputs = Tower(hidden, activation, self.num_outputs, 0.01, name="policy")(features)
        value = Tower(value_hidden, activation, 1, 1.0, name="value")(features)
        return outputs.T.reshape(*first.shape, -1), value.reshape(first.shape), memory


def make(config: NetworkConfig, spec: EnvSpec, num_outputs: int) -> Network:
    """The built-in network for this configuration and spec."""
    images = find_images(spec.observation)
    shared = any(images) or config.memory != "none"
    if shared and config.value_hidden is not None:
        widths = list(config.value_hidden)
        raise ConfigError(
            f"network.value_hidden = {widths}: with pixels or memory, policy and value share their layers"
        )
    module = ActorCritic(config, num_outputs, images, shared)

    def memory(batch: int) -> Tree:
        return CORES[config.memory].start(config.memory_size, batch) if config.memory != "none" else ()

    def init(key: jax.Array) -> Tree:
        obs = zeros_like_spec(spec.observation, (1, 1))
        return module.init(key, memory(1), obs, jnp.ones((1, 1), bool))["params"]

    def apply(params: Tree, memory: Tree, obs: Tree, first: jax.Array) -> Any:
        return module.apply({"params": params}, memory, obs, first)

    return Network(init, memory, apply, separate=not shared)
