"""Steps against a gradient, as all algorithms make them: by Adam, at a rate that may fall, of a bounded norm."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from podium.core.types import Tree

ADAM = optax.scale_by_adam()
COARSE_ADAM = optax.scale_by_adam(eps=1e-5)
"""Takes small gradients for smaller: what PPO and A2C are published with."""


class OptimizedParams(NamedTuple):
    """Parameters that are trained together, and the optimizer's state for them."""

    params: Tree
    optimizer: optax.OptState


def start(params: Tree, adam: optax.GradientTransformation = ADAM) -> OptimizedParams:
    """Parameters that Adam has not moved yet."""
    return OptimizedParams(params, adam.init(params))


def descend(
    part: OptimizedParams, gradient: Tree, rate: jax.Array, adam: optax.GradientTransformation = ADAM
) -> OptimizedParams:
    """A step of Adam against the gradient."""
    step, optimizer = adam.update(gradient, part.optimizer)
    return OptimizedParams(jax.tree.map(lambda p, s: p - rate * s, part.params, step), optimizer)


def clip(gradient: Tree, norm: jax.Array) -> Tree:
    """The gradient, scaled down to the largest norm allowed."""
    shrink = jnp.minimum(1.0, norm / (optax.tree.norm(gradient) + 1e-6))
    return jax.tree.map(lambda g: shrink * g, gradient)


def count_on(steps: jax.Array, more: jax.Array) -> jax.Array:
    """A count of steps, uint32[2] (low, high), `more` later. Exact, where a float32 stands still near 2**30."""
    low = steps[0] + more.astype(jnp.uint32)
    return jnp.stack([low, steps[1] + (low < steps[0])])


def part_done(steps: jax.Array, share: jax.Array | float) -> jax.Array:
    """A count of steps as part of all steps, of which one is this `share`."""
    return (steps[0] + 2.0**32 * steps[1]) * share


def anneal(rate: jax.Array, schedule: str, progress: jax.Array) -> jax.Array:
    """A rate after this part of the run: as it is, or by a `linear` schedule, which ends at 0."""
    return rate * jnp.maximum(0.0, 1 - progress) if schedule == "linear" else rate
