"""Small JAX environments whose best return is known: `podium:Catch-v0` and friends, for tests and first steps.

| id | task | best return |
|---|---|---|
| Bandit-v0 | one pull of k arms, fixed means | the best mean (1.0) |
| Chain-v0 | two states; leaving pays less now and more later | `length` - 1 |
| Catch-v0 | move under a falling ball | 1.0 |
| Memory-v0 | recall a cue after `delay` steps; only memory can | 1.0 (0.0 on average without) |
| Masked-v0 | legal actions change at each step; an illegal one ends it with -1 | `length` |
| Target-v0 | continuous: hit a point computed from the observation | 0.0 |
| MultiTarget-v0 | multi-discrete: name the digits seen | 1.0 |
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.core.specs import Array, Box, Discrete, EnvSpec, MultiDiscrete
from podium.core.types import Tree
from podium.envs.interface import JaxEnv, JaxStep

NO, YES = np.False_, np.True_


def make_bandit(arms: int = 4) -> JaxEnv:
    """One step; arm i pays (i + 1) / arms plus noise of ±0.1. Optimum: the last arm, 1.0 on average."""

    def reset(key: Any) -> tuple[Tree, Tree]:
        return (), jnp.ones((1,), jnp.float32)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        noise = jax.random.uniform(key, (), minval=-0.1, maxval=0.1)
        return state, JaxStep(jnp.ones((1,), jnp.float32), (action + 1) / arms + noise, YES, NO)

    return JaxEnv(EnvSpec(Array((1,)), Discrete(arms)), reset, step)


def make_chain(length: int = 10) -> JaxEnv:
    """States A (start) and B, `length` steps, then truncated. Action 1 goes to B, action 0 to A.

    Staying in A pays 0.5, arriving in B from A pays 0, staying in B pays 1, going back pays 0.
    Optimum: always 1, which returns `length` - 1. Greedy for one step stays in A and gets `length` / 2.
    """

    def look(at_b: Any) -> Any:
        return jax.nn.one_hot(at_b, 2)

    def reset(key: Any) -> tuple[Tree, Tree]:
        start = jnp.zeros((), jnp.int32)
        return (start, start), look(start)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        at_b, time = state
        action = jnp.asarray(action, jnp.int32)
        reward = jnp.where(at_b == action, jnp.where(at_b == 1, 1.0, 0.5), 0.0)
        return (action, time + 1), JaxStep(look(action), reward, NO, time + 1 >= length)

    return JaxEnv(EnvSpec(Array((2,)), Discrete(2)), reset, step)


def make_catch(rows: int = 10, columns: int = 5) -> JaxEnv:
    """A ball falls in a random column; the paddle at the bottom moves left, stays or moves right.

    The board is float32[rows, columns], flattened. Reward only when the ball is down: 1 if caught, else -1.
    Optimum: 1.0.
    """

    def look(ball: Any, paddle: Any, row: Any) -> Any:
        board = jnp.zeros((rows, columns), jnp.float32)
        return board.at[row, ball].set(1.0).at[rows - 1, paddle].set(1.0).reshape(-1)

    def reset(key: Any) -> tuple[Tree, Tree]:
        ball = jax.random.randint(key, (), 0, columns)
        state = ball, jnp.int32(columns // 2), jnp.int32(0)
        return state, look(*state)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        ball, paddle, row = state
        paddle = jnp.clip(paddle + jnp.asarray(action, jnp.int32) - 1, 0, columns - 1)
        state = ball, paddle, row + 1
        down = row + 1 == rows - 1
        reward = jnp.where(down, jnp.where(ball == paddle, 1.0, -1.0), 0.0)
        return state, JaxStep(look(*state), reward, down, NO)

    return JaxEnv(EnvSpec(Array((rows * columns,)), Discrete(3)), reset, step)


def make_memory(delay: int = 5) -> JaxEnv:
    """A cue (-1 or 1) is shown at the first step only; after `delay` steps the action must name it.

    Observation: [cue or 0, whether to answer now]. Reward at the end: 1 if action == (cue == 1), else -1.
    Optimum: 1.0; without memory 0.0 on average.
    """

    def look(cue: Any, time: Any) -> Any:
        return jnp.stack([jnp.where(time == 0, cue, 0.0), jnp.where(time == delay, 1.0, 0.0)])

    def reset(key: Any) -> tuple[Tree, Tree]:
        state = jnp.where(jax.random.bernoulli(key), 1.0, -1.0), jnp.int32(0)
        return state, look(*state)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        cue, time = state
        answered = time == delay
        right = (jnp.asarray(action) == 1) == (cue > 0)
        reward = jnp.where(answered, jnp.where(right, 1.0, -1.0), 0.0)
        state = cue, time + 1
        return state, JaxStep(look(*state), reward, answered, NO)

    return JaxEnv(EnvSpec(Array((2,)), Discrete(2)), reset, step)


def make_masked(length: int = 8, choices: int = 6) -> JaxEnv:
    """At each step half of the actions, in a row from a random one on, is legal; only the mask tells which.

    A legal action pays 1, an illegal one ends the episode with -1. Optimum: `length`, by obeying the mask.
    """

    def draw(key: Any) -> Any:
        return (jnp.arange(choices) - jax.random.randint(key, (), 0, choices)) % choices < choices // 2

    def look(time: Any) -> Any:
        return jnp.stack([time / length]).astype(jnp.float32)

    def reset(key: Any) -> tuple[Tree, Tree]:
        return (draw(key), jnp.int32(0)), look(jnp.int32(0))

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        legal, time = state
        obeyed = legal[action]
        done = ~obeyed | (time + 1 >= length)
        return (draw(key), time + 1), JaxStep(look(time + 1), jnp.where(obeyed, 1.0, -1.0), done, NO)

    return JaxEnv(EnvSpec(Array((1,)), Discrete(choices), masked=True), reset, step, mask=lambda state: state[0])


def make_target(length: int = 10) -> JaxEnv:
    """Observation o in [-1, 1]^2; the action in [-1, 1]^2 should be f(o) = (o1 / 2, -o0 / 2).

    Reward: -|a - f(o)|^2. Truncated after `length` steps. Optimum: 0.0.
    """

    def draw(key: Any) -> Any:
        return jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)

    def reset(key: Any) -> tuple[Tree, Tree]:
        obs = draw(key)
        return (obs, jnp.int32(0)), obs

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        seen, time = state
        aim = jnp.stack([seen[1], -seen[0]]) / 2
        obs = draw(key)
        return (obs, time + 1), JaxStep(obs, -jnp.sum((action - aim) ** 2), NO, time + 1 >= length)

    return JaxEnv(EnvSpec(Array((2,)), Box((2,), (-1.0, -1.0), (1.0, 1.0))), reset, step)


def make_multi_target(first: int = 3, second: int = 4) -> JaxEnv:
    """Two digits are shown one-hot; name both. One step; each right one pays 0.5. Optimum: 1.0."""
    nvec = jnp.array([first, second])

    def reset(key: Any) -> tuple[Tree, Tree]:
        digits = jax.random.randint(key, (2,), 0, nvec)
        obs = jnp.concatenate([jax.nn.one_hot(digits[0], first), jax.nn.one_hot(digits[1], second)])
        return (digits, obs), obs

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        digits, obs = state
        return state, JaxStep(obs, jnp.mean(jnp.asarray(action == digits, jnp.float32)), YES, NO)

    return JaxEnv(EnvSpec(Array((first + second,)), MultiDiscrete((first, second))), reset, step)


MAKERS: Mapping[str, Callable[..., JaxEnv]] = {
    "Bandit-v0": make_bandit,
    "Chain-v0": make_chain,
    "Catch-v0": make_catch,
    "Memory-v0": make_memory,
    "Masked-v0": make_masked,
    "Target-v0": make_target,
    "MultiTarget-v0": make_multi_target,
}


def list_ids() -> list[str]:
    """Every id of these."""
    return list(MAKERS)


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> JaxEnv:
    """One of them by id: `make_env("Catch-v0", {"rows": 6})`."""
    make = MAKERS[env_id]
    known = list(inspect.signature(make).parameters)
    for name, value in kwargs.items():
        if name not in known:
            hint = suggest(name, known) or f"; known are {', '.join(known)}"
            raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: podium:{env_id} has no {name!r}{hint}")
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: {name} must be a whole number of at least 1")
    return make(**kwargs)
