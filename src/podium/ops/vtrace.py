"""V-trace: values and advantages of a policy from steps that an older policy chose (Espeholt et al., 2018).

Arrays are [T, B] in the canonical layout, as in `ops.returns`: v_t has a row more, terminations and truncations
are kept apart, and a reset row reaches no other row, even if it is NaN.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podium.ops.returns import Scalar, check_shapes, scan_back


class VTrace(NamedTuple):
    """What V-trace makes of a fragment, all [T, B]."""

    target: jax.Array  # vs_t, which values are moved towards
    advantage: jax.Array  # q_t - v_t, not yet weighed
    rho: jax.Array  # min(ρ̄, ρ_t): the weight of a step's advantage in the policy gradient


def vtrace(
    log_ratio_t: jax.Array,
    r_t: jax.Array,
    v_t: jax.Array,
    terminated_t: jax.Array,
    truncated_t: jax.Array,
    gamma: Scalar,
    lambda_: Scalar = 1.0,
    clip_rho: Scalar = 1.0,
    clip_c: Scalar = 1.0,
) -> VTrace:
    """V-trace targets and advantages, where log_ratio_t = log π(a_t) - log μ(a_t) of learner and actor.

    With the importance weights ρ_t = min(ρ̄, π/μ) and c_t = λ min(c̄, π/μ),

        δ_t  = ρ_t (r_t + γ v_{t+1} - v_t)                     (v_{t+1} is 0 where terminated)
        vs_t = v_t + Σ_k γ^k (c_t ... c_{t+k-1}) δ_{t+k}

    of which the correction e_t = vs_t - v_t is a recursion, as generalised advantages are:

        e_t  = δ_t + γ c_t e_{t+1}                             (only δ_t where an episode ends)

    An action is worth its reward and what comes after it, corrected from the next step on:

        q_t  = r_t + γ (v_{t+1} + λ e_{t+1})

    ρ̄ decides which policy's values are found (π's if infinite), c̄ only how fast. After the last row e_T = 0. Where π
    is μ, targets are λ-returns and advantages those of `generalized_advantages`.

    found = vtrace(log_ratio, f.reward, values, f.terminated, f.truncated, 0.99)
    policy_loss = -(found.rho * found.advantage * log_prob).mean()
    """
    check_shapes(r_t, v_t, terminated_t, truncated_t)
    if log_ratio_t.shape != r_t.shape:
        raise ValueError(f"log_ratio_t has shape {log_ratio_t.shape}, but r_t has {r_t.shape}: must be the same")
    ratio_t = jnp.exp(log_ratio_t)
    rho_t, c_t = jnp.minimum(clip_rho, ratio_t), lambda_ * jnp.minimum(clip_c, ratio_t)
    one_step_t = r_t + gamma * jnp.where(terminated_t, 0.0, v_t[1:]) - v_t[:-1]
    ended_t = terminated_t | truncated_t

    def step(e_tp1: jax.Array, row: tuple[jax.Array, ...]) -> jax.Array:
        delta, c, ended = row
        return delta + jnp.where(ended, 0.0, gamma * c * e_tp1)

    e_t = scan_back(step, jnp.zeros_like(v_t[-1]), (rho_t * one_step_t, c_t, ended_t))
    e_tp1 = jnp.concatenate([e_t[1:], jnp.zeros_like(e_t[:1])])
    advantage_t = one_step_t + jnp.where(ended_t, 0.0, gamma * lambda_ * e_tp1)
    return VTrace(v_t[:-1] + e_t, advantage_t, rho_t)
