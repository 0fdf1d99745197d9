"""What algorithms of drawn rows share: experience, units of actions, weights of rows, regression, target networks.

box = make_box(spec, "sac")
rows, share = weigh(drawn, axis)                   # sums over rows with a share are means over all devices
critics, metrics, priorities = regress(critics, apply, rows, share, box.to_unit(rows.action), target, rate, axis)
targets = track(targets, critics.params, tau)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Drawn, Replay, Transitions
from podium.algorithms.collectives import add_up
from podium.algorithms.optimizers import OptimizedParams, descend
from podium.core.algorithm_configs import OffPolicyConfig
from podium.core.errors import ConfigError
from podium.core.specs import Box, Discrete, EnvSpec
from podium.core.types import Tree
from podium.ops import random_keys
from podium.ops.masking import zero_where


@dataclass(frozen=True)
class ActionBox:
    """Actions within bounds, and the same in units of half their range: from -1 to 1, [k, B] as networks have them."""

    spec: Box

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.spec.low, np.float32), np.asarray(self.spec.high, np.float32)

    @property
    def middle(self) -> np.ndarray:
        low, high = self.bounds
        return low / 2 + high / 2

    @property
    def reach(self) -> np.ndarray:
        """Half the range; 1 where there is none, so that what cannot move is 0 in its unit."""
        low, high = self.bounds
        half = high / 2 - low / 2
        return np.where(half > 0, half, np.float32(1))

    def to_unit(self, action: jax.Array) -> jax.Array:
        """Actions [B, *shape] of the environment as [k, B]."""
        return ((action.reshape(len(action), -1) - self.middle) / self.reach).T

    def from_unit(self, unit: jax.Array) -> jax.Array:
        """[k, B] as actions of the environment, which rounding takes over no bound."""
        action = jnp.clip(self.middle + self.reach * unit.T, *self.bounds)
        return action.reshape(len(action), *self.spec.shape)

    def draw(self, key: jax.Array) -> jax.Array:
        """Uniform in the box, for key[B], in its unit."""
        return 2 * random_keys.uniform(key, (self.spec.size,)).T - 1


def make_box(spec: EnvSpec, algorithm: str) -> ActionBox:
    """The box of the environment's actions, or one line on what is wrong with them."""
    action = spec.action
    if not isinstance(action, Box):
        others = "dqn or ppo" if isinstance(action, Discrete) else "ppo or a2c"
        raise ConfigError(
            f"algorithm.name = {algorithm!r}: needs continuous actions, but they are {action}; use {others}"
        )
    if not action.size:
        raise ConfigError(f"env: its actions are {action}: there is nothing to choose")
    if not action.is_bounded:
        bounds = f"needs actions with finite bounds, but they are {action}"
        raise ConfigError(f"algorithm.name = {algorithm!r}: {bounds}; use ppo or a2c")
    return ActionBox(action)


def experience(config: OffPolicyConfig, sequences: bool = False) -> Replay:
    """The experience that the configuration asks for: single steps, or whole sequences of as many steps."""
    length, rows = config.fragment_length, config.batch_size
    if sequences:
        rows, rest = divmod(rows, length)
        if rest:
            raise ConfigError(
                f"algorithm.batch_size = {config.batch_size}: with a recurrent network it must be a multiple of "
                f"algorithm.fragment_length = {length}, since what is drawn are whole sequences"
            )
    return Replay(
        length=length,
        discount=config.gamma,
        batch_size=rows,
        capacity=config.buffer_size,
        starts=config.learning_starts,
        ratio=config.update_ratio,
        n_step=config.n_step,
        sequences=sequences,
        priority_exponent=config.priority_exponent,
        priority_correction=config.priority_correction,
        spread=config.exploration_spread,
    )


class ReplayShare(NamedTuple):
    """Of each row [B] in a mean over all rows that count, on all devices."""

    weighed: jax.Array  # by the weights that correct for priorities: in losses
    plain: jax.Array  # all alike: in what is reported


def weigh(drawn: Drawn, axis: str | None) -> tuple[Transitions, ReplayShare]:
    """The rows, and the share of each.

    Rows of weight 0 hold zeros then: whatever they held, NaN too, is out of every product.
    """
    counts = drawn.weight > 0
    assert isinstance(drawn.rows, Transitions)
    total = jnp.maximum(add_up(jnp.sum(counts, dtype=jnp.float32), axis), 1.0)
    return zero_where(~counts, drawn.rows), ReplayShare(jnp.where(counts, drawn.weight, 0.0) / total, counts / total)


def regress(
    critics: OptimizedParams, apply: Callable, rows: Transitions, share: ReplayShare, action: jax.Array, target:
    jax.Array, rate: jax.Array, axis: str | None,
) -> tuple[OptimizedParams, dict[str, jax.Array], jax.Array]:  # fmt: skip
    """A step of every critic towards target[B]; metrics, and the mean of their absolute errors as priorities[B].

    The loss is the sum over critics of ½ E[(q - target)²].
    """

    def loss(params: Tree) -> tuple[jax.Array, tuple]:
        value = apply(params, rows.obs, action)
        error = value - target
        total = 0.5 * jnp.sum(share.weighed * error**2)
        metrics = {"critic_loss": total, "q": jnp.sum(share.plain * value) / len(value)}
        return total, (metrics, jnp.mean(jnp.abs(error), axis=0))

    gradient, (metrics, priorities) = jax.grad(loss, has_aux=True)(critics.params)
    gradient, metrics = add_up((gradient, metrics), axis)
    return descend(critics, gradient, rate), metrics, priorities


def track(target: Tree, params: Tree, tau: jax.Array) -> Tree:
    """The target network, moved by a part tau of the way towards the network."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)
