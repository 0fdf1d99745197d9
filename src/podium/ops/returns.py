"""Returns and advantages over fragments, time first.

All functions read the canonical layout of `core.types.Fragment`, with arrays [T, B]: acting at t gave
reward `r_t`, and led to the observation whose value is `v_t[t + 1]`. An episode that ends at t does
so in one of two ways:

    terminated_t    nothing comes after, so the future is worth 0
    truncated_t     the clock ran out, so the future is worth the final observation's value, v_t[t + 1]

and in both, row t + 1 is a reset row. What is computed for a reset row means nothing (the caller masks
it by `valid`), but it reaches no other row, even if it is NaN: the cuts select, they do not multiply by 0.

`gamma` and `lambda_` may be traced scalars. Gradients are not stopped here.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# A step's arithmetic is a few operations on B numbers: unrolled, the loop's own cost is shared by 16 of
# them. An associative scan has depth log T instead of T, but moves several times the memory, which loses
# on CPUs.
UNROLL = 16

Scalar = jax.Array | float


def generalized_advantages(
    r_t: jax.Array,
    v_t: jax.Array,
    terminated_t: jax.Array,
    truncated_t: jax.Array,
    gamma: Scalar,
    lambda_: Scalar,
) -> jax.Array:
    """Generalised advantage estimates [T, B] (Schulman et al., 2016).

    An advantage is the discounted sum of the temporal differences from t to the episode's end,

        δ_t = r_t + γ v_{t+1} - v_t        (v_{t+1} is 0 where terminated)
        A_t = Σ_k (γλ)^k δ_{t+k}

    of which all but the first term is γλ A_{t+1}:

        A_t = δ_t + γλ A_{t+1}             (only δ_t where an episode ends)

    After the last row, A_T = 0: the fragment's end is bootstrapped from v_T by δ_{T-1}.

    advantages = generalized_advantages(f.reward, values, f.terminated, f.truncated, 0.99, 0.95)
    targets = advantages + values[:-1]      # the λ-returns
    """
    check_shapes(r_t, v_t, terminated_t, truncated_t)
    v_tp1 = jnp.where(terminated_t, 0.0, v_t[1:])
    delta_t = r_t + gamma * v_tp1 - v_t[:-1]
    ended_t = terminated_t | truncated_t

    def step(a_tp1: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        delta, ended = row
        return delta + jnp.where(ended, 0.0, gamma * lambda_ * a_tp1)

    return scan_back(step, jnp.zeros_like(v_t[-1]), (delta_t, ended_t))


def lambda_returns(
    r_t: jax.Array,
    v_t: jax.Array,
    terminated_t: jax.Array,
    truncated_t: jax.Array,
    gamma: Scalar,
    lambda_: Scalar,
) -> jax.Array:
    """λ-returns [T, B]: the mixture of n-step returns in which each next n weighs λ times the one before.

    Looking one step further, the future is v_{t+1} with weight 1 - λ, and its own λ-return with λ:

        G_t = r_t + γ ((1 - λ) v_{t+1} + λ G_{t+1}),   G_T = v_T
        G_t = r_t + γ v_{t+1}                          where truncated
        G_t = r_t                                      where terminated

    λ = 0 gives one-step returns, λ = 1 the discounted rewards with a bootstrap at their end. For algorithms of users:
    examples/reinforce.py and docs/own-algorithm.md call it.
    """
    check_shapes(r_t, v_t, terminated_t, truncated_t)

    def step(g_tp1: jax.Array, row: tuple[jax.Array, ...]) -> jax.Array:
        r, v_tp1, terminated, truncated = row
        future = jnp.where(truncated, v_tp1, (1 - lambda_) * v_tp1 + lambda_ * g_tp1)
        return r + jnp.where(terminated, 0.0, gamma * future)

    return scan_back(step, v_t[-1], (r_t, v_t[1:], terminated_t, truncated_t))


def n_step_returns(
    r_t: jax.Array,
    v_t: jax.Array,
    terminated_t: jax.Array,
    truncated_t: jax.Array,
    gamma: Scalar,
    n: int,
) -> jax.Array:
    """Returns [T, B] of n rewards and a bootstrap: G_t = r_t + ... + γ^{n-1} r_{t+n-1} + γ^n v_{t+n}.

    With k steps to look at, one is the reward and k - 1 are the return of the next row:

        G^0_t = v_t
        G^k_t = r_t + γ G^{k-1}_{t+1},   with v_{t+1} where truncated and 0 where terminated

    so n backups of the whole array give the answer. Where fewer than n rows are left, v_T is the bootstrap.
    """
    check_shapes(r_t, v_t, terminated_t, truncated_t)
    if n < 1:
        raise ValueError(f"n = {n}: a return needs at least one step")

    def backup(_: int, g_t: jax.Array) -> jax.Array:
        future = jnp.where(terminated_t, 0.0, jnp.where(truncated_t, v_t[1:], g_t[1:]))
        return jnp.concatenate([r_t + gamma * future, v_t[-1:]])

    return jax.lax.fori_loop(0, min(n, r_t.shape[0]), backup, v_t)[:-1]


def bootstrapped_returns(
    rewards: jax.Array, steps: jax.Array, next_value: jax.Array, terminated: jax.Array, gamma: Scalar
) -> jax.Array:
    """Returns [B] of the n-step rows of a replay buffer (`Transitions`): rewards and then a value.

        G = Σ_{i < steps} γ^i rewards_i + γ^steps next_value        (without the value where terminated)

    `rewards` is [B, n] and 0 beyond `steps` [B], which differ where an episode or a fragment ended before n.

    targets = bootstrapped_returns(rows.rewards, rows.steps, value_of(rows.next_obs), rows.terminated, gamma=0.99)
    """
    n = rewards.shape[-1]
    if not steps.shape == next_value.shape == terminated.shape == rewards.shape[:-1]:
        raise ValueError(
            f"steps {steps.shape}, next_value {next_value.shape} and terminated {terminated.shape} must each be "
            f"{rewards.shape[:-1]}, for rewards of {rewards.shape}"
        )
    total = rewards[..., n - 1]
    for i in reversed(range(n - 1)):
        total = rewards[..., i] + gamma * total
    return total + jnp.where(terminated, 0.0, jnp.asarray(gamma, jnp.float32) ** steps * next_value)


def scan_back(step: Callable, last: jax.Array, rows: tuple[jax.Array, ...]) -> jax.Array:
    """Fold from the last row to the first, keeping what each step gives."""

    def keep(carry: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        result = step(carry, row)
        return result, result

    return jax.lax.scan(keep, last, rows, reverse=True, unroll=UNROLL)[1]


def check_shapes(r_t: jax.Array, v_t: jax.Array, terminated_t: jax.Array, truncated_t: jax.Array) -> None:
    """Broadcasting would hide a value too few, or flags of another layout, behind plausible numbers."""
    expected = {
        "terminated_t": (terminated_t, r_t.shape),
        "truncated_t": (truncated_t, r_t.shape),
        "v_t": (v_t, (r_t.shape[0] + 1, *r_t.shape[1:])),
    }
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but r_t has {r_t.shape}: must be {shape}")
        if name != "v_t" and array.dtype != bool:
            raise ValueError(f"{name} has dtype {array.dtype}: must be bool")
