"""Estimators of advantages and value targets: what A2C differs in from IMPALA, and PPO from APPO.

| steps of            | one gradient step | epochs of a clipped surrogate |
|---------------------|-------------------|-------------------------------|
| this policy: GAE    | A2C               | PPO                           |
| an older one: V-trace | IMPALA          | APPO                          |

    found = estimate(hyper, fragment, value, log_ratio)      # arrays [T, B]; value [T+1, B]
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
    weight: jax.Array  # of an advantage in a policy gradient that has no probability ratio of its own


Hyper = dict[str, jax.Array]
Estimator = Callable[[Hyper, Fragment, jax.Array, jax.Array], Estimate]
"""(hyper, fragment, value [T+1, B], log π(a) - log μ(a) [T, B] of the learner and the actor) -> Estimate."""


def by_gae(hyper: Hyper, batch: Fragment, value: jax.Array, log_ratio: jax.Array) -> Estimate:
    """Generalised advantages: takes the actor's policy for the learner's."""
    gamma, lambda_ = hyper["gamma"], hyper["gae_lambda"]
    advantage = generalized_advantages(batch.reward, value, batch.terminated, batch.truncated, gamma, lambda_)
    return Estimate(advantage, advantage + value[:-1], jnp.ones_like(advantage))


def by_vtrace(hyper: Hyper, batch: Fragment, value: jax.Array, log_ratio: jax.Array) -> Estimate:
    """V-trace: corrected by importance weights, which `clip_rho` and `clip_c` bound."""
    ends, gamma, lambda_ = (batch.terminated, batch.truncated), hyper["gamma"], hyper["gae_lambda"]
    found = vtrace(log_ratio, batch.reward, value, *ends, gamma, lambda_, hyper["clip_rho"], hyper["clip_c"])
    return Estimate(found.advantage, found.target, found.rho)
