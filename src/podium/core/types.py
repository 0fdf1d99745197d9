"""The records that pass between environments, actors and learners. Plain tuples of arrays.

Time and batch axes are written [T, B]. A row is one (environment, agent) pair.
"""

from typing import Any, NamedTuple

Tree = Any
"""Arrays in nested dicts and tuples; JAX calls it a pytree."""


class ActInput(NamedTuple):
    """All that a policy may look at when it acts, for B rows.

    `key` is folded from the run's key, the row's number and its step, so the noise of an
    action does not depend on how the batch was formed.
    """

    obs: Tree  # [B, ...]
    first: Any  # bool[B]: obs starts an episode, so memory of the one before must go
    mask: Any  # bool[B, n] of legal actions, or None
    key: Any  # PRNG key[B]
    exploration: Any  # float[B]: 1 is the algorithm's own noise, 0 none


class Fragment(NamedTuple):
    """T steps of B rows in the canonical layout (next-step autoreset).

    `obs[t]` is what the policy saw when it took `action[t]`, which gave `reward[t]` and `obs[t+1]`.
    After an episode's end at t, `obs[t+1]` is its final observation, and row t+1 is a *reset row*:
    `valid[t+1]` is False, its action was ignored, and `obs[t+2]` starts the next episode
    (`first[t+2]`). Reset rows are outside losses, statistics and env steps.
    """

    obs: Tree  # [T+1, B, ...]
    first: Any  # bool[T+1, B]
    mask: Any  # bool[T+1, B, n] or None
    action: Any  # [T, B, ...]
    extras: Tree  # [T, B, ...]: what act returned beside the action, such as log-probabilities
    reward: Any  # float32[T, B]
    discounted: Any  # float32[T, B]: discounted sum of rewards so far in the episode, for reward scaling
    terminated: Any  # bool[T, B]
    truncated: Any  # bool[T, B]
    valid: Any  # bool[T, B]
    version: Any  # int32[T, B]: update number of the parameters that chose the action
    memory: Tree  # [B, ...]: recurrent memory before obs[0]
