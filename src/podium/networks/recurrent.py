"""Recurrent cores that forget at an episode's start, inside the scan over time."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from podium.core.types import Tree
from podium.networks.orthogonal import orthogonal


def _forget(memory: Tree, first: jax.Array) -> Tree:
    """Zero the rows whose observation starts an episode."""
    return jax.tree.map(lambda m: jnp.where(first[:, None], 0.0, m), memory)


class _GRUStep(nn.Module):
    features: int

    @nn.compact
    def __call__(self, memory: Tree, inputs: Any) -> tuple[Tree, jax.Array]:
        x, first = inputs
        return nn.GRUCell(self.features, recurrent_kernel_init=orthogonal())(_forget(memory, first), x)


class _LSTMStep(nn.Module):
    features: int

    @nn.compact
    def __call__(self, memory: Tree, inputs: Any) -> tuple[Tree, jax.Array]:
        x, first = inputs
        return nn.OptimizedLSTMCell(self.features, recurrent_kernel_init=orthogonal())(_forget(memory, first), x)


def _over_time(step: Any) -> Any:
    return nn.scan(step, variable_broadcast="params", split_rngs={"params": False})


class GRU(nn.Module):
    """memory [B, n], x [T, B, m], first [T, B] -> memory [B, n], y [T, B, n]."""

    features: int

    @nn.compact
    def __call__(self, memory: Tree, x: jax.Array, first: jax.Array) -> tuple[Tree, jax.Array]:
        return _over_time(_GRUStep)(self.features, name="cell")(memory, (x, first))

    @staticmethod
    def start(features: int, batch: int) -> Tree:
        """Memory at an episode's start."""
        return jnp.zeros((batch, features))


class LSTM(nn.Module):
    """The same with cell and hidden state: memory is a pair of [B, n]."""

    features: int

    @nn.compact
    def __call__(self, memory: Tree, x: jax.Array, first: jax.Array) -> tuple[Tree, jax.Array]:
        return _over_time(_LSTMStep)(self.features, name="cell")(memory, (x, first))

    @staticmethod
    def start(features: int, batch: int) -> Tree:
        """Memory at an episode's start."""
        return (jnp.zeros((batch, features)), jnp.zeros((batch, features)))


CORES = {"gru": GRU, "lstm": LSTM}
