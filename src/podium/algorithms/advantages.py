"""Estimators of advantages and value targets: what A2C differs in from IMPALA, and PPO from APPO.

| steps of            | one gradient step | epochs of a clipped surrogate |
|---------------------|-------------------|-------------------------------|
| this policy: GAE    | A2C               | PPO                           |
| an older one: V-trace | IMPALA          | APPO                          |

    found = by_vtrace.find(hyper, fragment, value, log_ratio)      # arrays [T, B]; value [T+1, B]
    weight = by_vtrace.weigh(hyper, log_ratio)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podium.core.types import Fragment
from podium.ops.returns import generalized_advantages
from podium.ops.vtrace import vtrace


class Estimate(NamedTuple):
    """What an estimator finds for each step, [T, B]."""

    advantage: jax.Array
    target: jax.Array  # of the value


Hyper = dict[str, jax.Array]


class Estimator(NamedTuple):
    """Two functions of log π(a) - log μ(a) [T, B], of the learner's policy and the actor's."""

    find: Callable[[Hyper, Fragment, jax.Array, jax.Array], Estimate]  # (hyper, fragment, value [T+1, B], log_ratio)
    weigh: Callable[[Hyper, jax.Array], jax.Array]
    """(hyper, log_ratio): the weights of advantages in a policy gradient that has no probability ratio of its own."""


def _find_gae(hyper: Hyper, batch: Fragment, value: jax.Array, log_ratio: jax.Array) -> Estimate:
    gamma, lambda_ = hyper["gamma"], hyper["gae_lambda"]
    advantage = generalized_advantages(batch.reward, value, batch.terminated, batch.truncated, gamma, lambda_)
    return Estimate(advantage, advantage + value[:-1])


def _find_vtrace(hyper: Hyper, batch: Fragment, value: jax.Array, log_ratio: jax.Array) -> Estimate:
    ends, gamma, lambda_ = (batch.terminated, batch.truncated), hyper["gamma"], hyper["gae_lambda"]
    found = vtrace(log_ratio, batch.reward, value, *ends, gamma, lambda_, hyper["clip_rho"], hyper["clip_c"])
    return Estimate(found.advantage, found.target)


by_gae = Estimator(_find_gae, weigh=lambda hyper, log_ratio: jnp.ones_like(log_ratio))
"""Generalised advantages: takes the actor's policy for the learner's."""
by_vtrace = Estimator(_find_vtrace, weigh=lambda hyper, log_ratio: jnp.minimum(hyper["clip_rho"], jnp.exp(log_ratio)))
"""V-trace: corrected by importance weights, which `clip_rho` and `clip_c` bound."""
