"""A network of your own, by its Python path: residual layers that policy and value share.

podium train ppo CartPole-v1 --set network.factory=own_network:make_network network.hidden=[64,64]
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.core.config import NetworkConfig
from podium.core.specs import EnvSpec
from podium.networks.network import Network, zeros_like_spec
from podium.networks.orthogonal import orthogonal


class Residual(nn.Module):
    """Layers that add to what they were given; the first one sets the width."""

    hidden: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = nn.Dense(self.hidden[0])(obs)
        for width in self.hidden:
            x = x + nn.Dense(self.hidden[0])(nn.swish(nn.Dense(width)(nn.LayerNorm()(x))))
        x = nn.LayerNorm()(x)
        small = orthogonal(0.01)  # so that the first policy is nearly uniform
        return nn.Dense(self.num_outputs, kernel_init=small)(x), nn.Dense(1)(x)[..., 0]


def make_network(config: NetworkConfig, spec: EnvSpec, num_outputs: int) -> Network:
    """A network for observations that are one vector. Without memory, `memory` is the empty tree ()."""
    module = Residual(config.hidden, num_outputs)

    def init(key: jax.Array) -> Any:
        return module.init(key, zeros_like_spec(spec.observation, (1, 1)))["params"]

    def apply(params: Any, memory: Any, obs: Any, first: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        both: Any = module.apply({"params": params}, jnp.asarray(obs, jnp.float32))  # obs [T, B, n]
        return *both, memory

    return Network(init, memory=lambda batch: (), apply=apply)
