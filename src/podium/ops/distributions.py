"""Distributions over actions: one interface for discrete, multi-discrete and continuous ones.

    distribution = make(spec.action, outputs, log_std, mask)
    action = distribution.sample(key)                               # key[B]: each row has its own
    loss = -(distribution.log_prob(action) * advantage + 0.01 * distribution.entropy()).mean()

All have `sample`, `mode`, `log_prob`, `entropy` and `kl`, take any leading axes ([B, ...], [T, B, ...]), and
sum log-probabilities, entropies and divergences over an action's components.
They are trees of arrays, and so pass through jit, vmap and scan. Keys are typed (`jax.random.key`).
"""

from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from podium.core import specs
from podium.core.errors import ConfigError
from podium.ops import random_keys

# Logits of illegal actions. Finite, so that 0 * log 0 is 0 and gradients are not NaN; exp of it is exactly 0.
# Where nothing is legal (the reset row of a finished game), all actions come out equally likely.
ILLEGAL = -1e30
# Logits of the padding in a MultiCategorical: less likely than illegal, so that it is never drawn even then.
ABSENT = -1e38
# Where a network gives the standard deviation too, it could give anything; Haarnoja et al. (2018) clip it so.
LOG_STD_RANGE = (-20.0, 2.0)


def _static(**options: Any) -> Any:
    return field(metadata={"static": True}, **options)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """One choice out of n. Where `mask` is False, an action is illegal and has probability exactly 0."""

    logits: jax.Array  # [..., n]
    mask: jax.Array | None = None  # bool[..., n]

    @property
    def log_probs(self) -> jax.Array:
        """Log-probabilities of all n actions [..., n]; of illegal ones about -1e30."""
        return jax.nn.log_softmax(_forbid(self.logits, self.mask))

    def sample(self, key: jax.Array) -> jax.Array:
        """Actions int32[...]."""
        # Inverting the cumulative distribution takes one random number a row; adding Gumbel noise to the
        # logits would take n of them, and their logarithms.
        probs = jnp.exp(self.log_probs)
        # Only what has probability can be reached, and the largest reach is above every threshold, since
        # uniform numbers are below 1: so rounding in the sums never draws an illegal action.
        reach = jnp.where(probs > 0, jnp.cumsum(probs, axis=-1), 0.0)
        draws = self.logits.shape[key.ndim : -1]
        uniform = random_keys.uniform(key, draws)
        threshold = uniform[..., None] * jnp.max(reach, axis=-1, keepdims=True)
        return jnp.argmax(reach > threshold, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        """The most likely action, int32[...]."""
        return jnp.argmax(_forbid(self.logits, self.mask), axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability [...] of int[...] actions from 0 to n - 1."""
        # A selection and a sum fuse with the softmax, forwards and backwards; a gather has a scatter as gradient.
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])
        return jnp.sum(jnp.where(chosen, self.log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        """Entropy [...] in nats."""
        log_probs = self.log_probs
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: Self) -> jax.Array:
        """KL(self || other) [...]. Huge where `other` forbids what self allows."""
        log_probs = self.log_probs
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other.log_probs), axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, the i-th out of nvec[i]; logits and mask hold them one after the other."""

    logits: jax.Array  # [..., sum(nvec)]
    nvec: tuple[int, ...] = _static()
    mask: jax.Array | None = None  # bool[..., sum(nvec)]

    @property
    def choices(self) -> Categorical:
        """The choices as one Categorical [..., len(nvec), max(nvec)], padded with actions of probability 0."""
        nvec = np.asarray(self.nvec)
        column = np.arange(nvec.max())
        real = column < nvec[:, None]
        index = np.where(real, (np.cumsum(nvec) - nvec)[:, None] + column, 0)
        return Categorical(jnp.where(real, _forbid(self.logits, self.mask)[..., index], ABSENT))

    def sample(self, key: jax.Array) -> jax.Array:
        """Actions int32[..., len(nvec)]."""
        return self.choices.sample(key)

    def mode(self) -> jax.Array:
        """The most likely action of each choice, int32[..., len(nvec)]."""
        return self.choices.mode()

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability [...] of int[..., len(nvec)] actions."""
        return jnp.sum(self.choices.log_prob(action), axis=-1)

    def entropy(self) -> jax.Array:
        """Entropy [...] in nats."""
        return jnp.sum(self.choices.entropy(), axis=-1)

    def kl(self, other: Self) -> jax.Array:
        """KL(self || other) [...]."""
        return jnp.sum(self.choices.kl(other.choices), axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal numbers, without bounds: whoever steps an environment that has bounds clips.

    Parameters are flat, [..., k]; actions have `shape` behind the leading axes, (k,) if it is not given.
    """

    mean: jax.Array  # [..., k]
    log_std: jax.Array  # [..., k], or less that broadcasts to it
    shape: tuple[int, ...] | None = _static(default=None)

    def sample(self, key: jax.Array) -> jax.Array:
        """Actions [..., *shape]."""
        return _unflatten(self._draw(key), self.shape)

    def mode(self) -> jax.Array:
        """The mean [..., *shape]."""
        return _unflatten(self.mean, self.shape)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability density [...] of actions [..., *shape]."""
        return self._log_density(_flatten(action, self.mean, self.shape))

    def entropy(self) -> jax.Array:
        """Differential entropy [...] in nats: log(σ √(2πe)) for each number."""
        log_std = jnp.broadcast_to(self.log_std, self.mean.shape)
        return jnp.sum(log_std + 0.5 * np.log(2 * np.pi * np.e), axis=-1)

    def kl(self, other: Self) -> jax.Array:
        """KL(self || other) [...]: log(σ'/σ) + (σ² + (μ - μ')²) / 2σ'² - 1/2 for each number."""
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        # expm1 keeps the digits of two nearly equal deviations, which PPO's KL is mostly about.
        return jnp.sum(0.5 * (jnp.expm1(2 * log_ratio) + distance**2) - log_ratio, axis=-1)

    def _draw(self, key: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * random_keys.normal(key, self.mean.shape[key.ndim :])

    def _log_density(self, x: jax.Array) -> jax.Array:
        z = (x - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * np.log(2 * np.pi), axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TanhGaussian:
    """Normal numbers u squashed into bounds: low + (high - low) (1 + tanh u) / 2.

    The density of an action is that of its u, over the slope of the squashing,

        log da/du = log((high - low) / 2) + log(1 - tanh² u) = log(2 (high - low)) - 2 (u + softplus(-2u))

    whose second form keeps its digits where tanh² u rounds to 1.

    `log_prob(action)` must find u again, and takes it from the action's distances to both bounds. Where a
    bound is far from 0, float32 has few numbers near it: about 1e-7 of it is what can be told apart, which is
    |u| = 8 or so for common bounds; an action on the bound itself counts as a quarter of the last step away.
    Two log-probabilities of one action, as in PPO's ratio, lose the same. Where gradients flow through the action
    itself, take the density of the u that was drawn, as `algorithms.sac` does.
    """

    mean: jax.Array  # [..., k]
    log_std: jax.Array  # [..., k], or less that broadcasts to it
    low: tuple[float, ...] = _static()
    high: tuple[float, ...] = _static()
    shape: tuple[int, ...] | None = _static(default=None)

    def sample(self, key: jax.Array) -> jax.Array:
        """Actions [..., *shape], within the bounds."""
        return self._squash(self._inner._draw(key))

    def mode(self) -> jax.Array:
        """The squashed mean [..., *shape]: the median of each number. (A wide one is densest at its bounds.)"""
        return self._squash(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability density [...] of actions [..., *shape] within the bounds."""
        a = _flatten(action, self.mean, self.shape)
        low, high = np.asarray(self.low), np.asarray(self.high)
        above = jnp.maximum(a - low, self._last_step(low) / 4)
        below = jnp.maximum(high - a, self._last_step(high) / 4)
        u = 0.5 * (jnp.log(above) - jnp.log(below))
        return self._inner._log_density(u) - jnp.sum(self._log_slope(u), axis=-1)

    def entropy(self) -> jax.Array:
        """Differential entropy [...] in nats: that of u, and the mean of the log-slope.

        The mean has no closed form. It is taken by the trapezoidal rule over 33 points within ±5.5 standard
        deviations, which for such a bell is more exact than Gauss-Hermite: to 1e-6 for standard deviations up
        to 2, to 1e-2 up to e².
        """
        z = np.linspace(-5.5, 5.5, 33).reshape(-1, *(1,) * self.mean.ndim)
        weight = np.exp(-0.5 * z**2) / np.sum(np.exp(-0.5 * z**2))
        log_slope = self._log_slope(self.mean + jnp.exp(self.log_std) * z)
        return self._inner.entropy() + jnp.sum(weight * log_slope, axis=(0, -1))

    def kl(self, other: Self) -> jax.Array:
        """KL(self || other) [...] for equal bounds: squashing both changes nothing."""
        return self._inner.kl(other._inner)

    @property
    def _inner(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, self.log_std)

    @property
    def _width(self) -> np.ndarray:
        return np.asarray(self.high) - np.asarray(self.low)

    def _last_step(self, bound: np.ndarray) -> np.ndarray:
        """Between a bound and the float32 next to it; not next to nothing where the bound is 0."""
        return np.maximum(np.spacing(np.abs(bound).astype(np.float32)), self._width * 2.0**-24)

    def _squash(self, u: jax.Array) -> jax.Array:
        # From the nearer bound, so that small distances to it are not rounded away, and none gets past it.
        nearer = self._width * jax.nn.sigmoid(-2 * jnp.abs(u))
        return _unflatten(jnp.where(u < 0, np.asarray(self.low) + nearer, np.asarray(self.high) - nearer), self.shape)

    def _log_slope(self, u: jax.Array) -> jax.Array:
        return jnp.log(2 * self._width) - 2 * (u + jax.nn.softplus(-2 * u))


Distribution = Categorical | MultiCategorical | DiagonalGaussian | TanhGaussian


def num_outputs(action: specs.Action, std_by_network: bool = False) -> int:
    """How many numbers a network must give for one action.

    For a Box those are means, and log standard deviations too if they depend on the observation
    (`std_by_network`: then call `make` without `log_std`).

    >>> num_outputs(specs.MultiDiscrete((3, 2)))
    5
    """
    match action:
        case specs.Discrete(n):
            return n
        case specs.MultiDiscrete(nvec):
            return sum(nvec)
        case specs.Box():
            return 2 * action.size if std_by_network else action.size


def make(
    action: specs.Action,
    outputs: jax.Array,
    log_std: jax.Array | None = None,
    mask: jax.Array | None = None,
    squash: bool = False,
) -> Distribution:
    """The distribution over actions that a network's outputs [..., num_outputs] stand for.

    `log_std` is for a Box: [k], or whatever broadcasts to [..., k]; None if the outputs' second half is that.
    `mask` is bool[..., n] of legal actions, for discrete ones. `squash` keeps a Box's actions in its bounds.
    """
    is_box = isinstance(action, specs.Box)
    expected = num_outputs(action, std_by_network=is_box and log_std is None)
    if outputs.shape[-1] != expected:
        raise ValueError(f"outputs have shape {outputs.shape}: the last axis must be {expected} for {action}")
    if is_box and mask is not None:
        raise ValueError(f"a mask of legal actions has no meaning for {action}")
    outputs = outputs.astype(jnp.float32)
    match action:
        case specs.Discrete():
            return Categorical(outputs, mask)
        case specs.MultiDiscrete(nvec):
            return MultiCategorical(outputs, nvec, mask)
        case specs.Box():
            if log_std is None:
                outputs, log_std = jnp.split(outputs, 2, axis=-1)
                log_std = jnp.clip(log_std, *LOG_STD_RANGE)
            if not squash:
                return DiagonalGaussian(outputs, log_std, action.shape)
            if not action.is_bounded:
                raise ConfigError(f"squash = True: the actions must have finite bounds on both sides, not {action}")
            return TanhGaussian(outputs, log_std, action.low, action.high, action.shape)


def _forbid(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    return logits if mask is None else jnp.where(mask, logits, ILLEGAL)


def _flatten(action: jax.Array, like: jax.Array, shape: tuple[int, ...] | None) -> jax.Array:
    """Actions [..., *shape] as [..., k]."""
    axes = 1 if shape is None else len(shape)
    return action.reshape(*action.shape[: action.ndim - axes], like.shape[-1])


def _unflatten(x: jax.Array, shape: tuple[int, ...] | None) -> jax.Array:
    """Numbers [..., k] as actions [..., *shape]."""
    return x if shape is None else x.reshape(*x.shape[:-1], *shape)
