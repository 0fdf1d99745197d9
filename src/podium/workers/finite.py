"""Numbers of an environment that are not finite: found before a learner sees them, and told with their place.

What follows an end by itself (`terminated`) is never learned from, so a simulator may lose its numbers there.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.types import Fragment

REWARD, OBSERVATION = 0, 1
KINDS = {REWARD: "a reward", OBSERVATION: "an observation"}


def find_fault(fragment: Fragment) -> tuple[int, int, int] | None:
    """The first number of a fragment that is not finite, as (step of it, row, kind); None if there is none."""
    sums = [np.sum(leaf) for leaf in _floats(fragment, np)]
    if np.isfinite(fragment.reward.sum()) and np.isfinite(sums).all():
        return None  # a sum is finite only if all its terms are, and takes a fifth of the time of looking at each
    found = np.argwhere(_faults(fragment, np))
    return None if not len(found) else tuple(int(i) for i in found[0])  # type: ignore[return-value]


def encode_fault(fragment: Fragment, env_id: Any, num_envs: int) -> Any:
    """The same inside XLA, as one number: the larger the earlier, 0 if there is none. `decode_fault` reads it."""
    faults = _faults(fragment, jnp)
    steps, _, kinds = faults.shape
    place = (jnp.arange(steps)[:, None, None] * num_envs + env_id[None, :, None]) * kinds + jnp.arange(kinds)
    return jnp.max(jnp.where(faults, steps * num_envs * kinds - place, 0)).astype(jnp.int32)


def decode_fault(code: int, length: int, num_envs: int) -> tuple[int, int, int]:
    """Step of the fragment, environment and kind of what `encode_fault` found in a fragment of this length."""
    kinds = len(KINDS)
    place = (length + 1) * num_envs * kinds - code
    return place // (num_envs * kinds), place // kinds % num_envs, place % kinds


def describe_fault(name: str, kind: int, step: int) -> str:
    """`environment 3 (Pendulum-v1, seed 7) gave a reward that is not finite, at its step 1,204`."""
    right = "what it computes is at fault, not the training; clip or end such episodes in a wrapper (env.wrappers)"
    return f"{name} gave {KINDS[kind]} that is not finite, at its step {step:,}: {right}"


def _floats(fragment: Fragment, of: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(fragment.obs) if of.issubdtype(leaf.dtype, of.floating)]


def _faults(fragment: Fragment, of: Any) -> Any:
    """bool[T + 1, R, 2]: where a reward, or an observation, is not finite that something could be learned from."""
    reward = ~of.isfinite(fragment.reward) & fragment.valid
    usable = of.concatenate([fragment.first[:1], ~fragment.terminated])
    bad = of.zeros(usable.shape, bool)
    for leaf in _floats(fragment, of):
        bad = bad | ~of.isfinite(leaf).reshape(*usable.shape, -1).all(-1)
    return of.stack([of.concatenate([reward, of.zeros_like(reward[:1])]), bad & usable], -1)
