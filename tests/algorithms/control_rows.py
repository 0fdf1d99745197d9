"""Rows of continuous control for the tests of DDPG, TD3 and SAC, and networks computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.core.algorithm_configs import AlgorithmConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.core.specs import Array, Box, EnvSpec
from podium.core.types import ActInput

SPEC = EnvSpec(Array((3,)), Box((2,), (-1.0, 0.0), (3.0, 10.0)))
MIDDLE, REACH = np.array([1.0, 5.0]), np.array([2.0, 5.0])


def experiment(config: AlgorithmConfig, hidden: tuple[int, ...] = (16, 16), activation="relu") -> Experiment:
    return Experiment(algorithm=config, env=EnvConfig("podium:Target-v0"), network=NetworkConfig(hidden, activation))


def start(module, config: AlgorithmConfig, spec: EnvSpec = SPEC, seed: int = 0, **options):
    """The algorithm, and its state before the first update."""
    chosen = experiment(config, **options)
    algorithm = module.make(config, chosen, spec)
    return algorithm, jax.jit(lambda key: algorithm.init(key, spec, chosen.hyper()))(jax.random.key(seed))


def draw_rows(rows: int = 8, n: int = 2, seed: int = 0) -> Drawn:
    """Rows of one and of two steps, terminated and not, all weights alike."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, n + 1, rows).astype(np.int32)
    rewards = np.where(np.arange(n) < steps[:, None], rng.normal(size=(rows, n)), 0.0)
    return Drawn(
        Transitions(
            obs=rng.normal(size=(rows, 3)).astype(np.float32),
            mask=None,
            action=(MIDDLE + REACH * rng.uniform(-1, 1, (rows, 2))).astype(np.float32),
            rewards=rewards.astype(np.float32),
            steps=steps,
            terminated=np.arange(rows) % 3 == 0,
            next_obs=rng.normal(size=(rows, 3)).astype(np.float32),
            next_mask=None,
        ),
        weight=np.ones(rows, np.float32),
    )


def with_bad_row(drawn: Drawn) -> Drawn:
    """One row more, of weight 0, that holds no numbers."""

    def append(x, bad):
        return np.concatenate([x, np.full((1, *x.shape[1:]), bad, x.dtype)])

    rows = drawn.rows
    assert isinstance(rows, Transitions)
    bad = {name: append(getattr(rows, name), np.nan) for name in ("obs", "action", "rewards", "next_obs")}
    return Drawn(
        rows._replace(**bad, steps=append(rows.steps, 1), terminated=append(rows.terminated, False)),
        append(drawn.weight, 0),
    )


def look(obs, seed: int = 0, exploration: float = 1.0) -> ActInput:
    rows = len(obs)
    key = jax.random.split(jax.random.key(seed), rows)
    return ActInput(jnp.asarray(obs), jnp.zeros(rows, bool), None, key, jnp.full(rows, exploration))


def policy_by_hand(params, obs) -> np.ndarray:
    """Outputs [B, n] of a policy tower, in float64."""
    tower = jax.tree.map(lambda x: np.asarray(x, np.float64), params["tower"])
    x = np.asarray(obs, np.float64).T
    for number in range(len(tower["hidden"])):
        layer = tower["hidden"][f"Dense_{number}"]
        x = np.maximum(layer["kernel"] @ x + layer["bias"], 0)
    return (tower["head"]["kernel"] @ x + tower["head"]["bias"]).T


def critics_by_hand(params, obs, action) -> np.ndarray:
    """Values [towers, B], one tower after the other, in float64."""
    towers = jax.tree.map(lambda x: np.asarray(x, np.float64), params["towers"])
    values = []
    for tower in range(len(towers["head"]["kernel"])):
        x = np.concatenate([np.asarray(obs, np.float64), np.asarray(action, np.float64)], axis=1).T
        for number in range(len(towers) - 1):
            layer = towers[f"hidden_{number}"]
            x = np.maximum(layer["kernel"][tower] @ x + layer["bias"][tower], 0)
        values.append((towers["head"]["kernel"][tower] @ x + towers["head"]["bias"][tower])[0])
    return np.array(values)


def returns_by_hand(rows: Transitions, next_value: np.ndarray, gamma: float) -> np.ndarray:
    targets = []
    for row, steps in enumerate(rows.steps):
        later = 0.0 if rows.terminated[row] else gamma**steps * next_value[row]
        targets.append(sum(gamma**i * rows.rewards[row, i] for i in range(steps)) + later)
    return np.array(targets)


def to_unit(action) -> np.ndarray:
    return (np.asarray(action, np.float64) - MIDDLE) / REACH


# A linear-quadratic task: s' = 0.8 s + 0.5 u, reward -(s² + 0.3 u²), discount 0.9. Its best policy is u = -k s, with k
# from the Riccati equation for p, where -p s² is the value.
A, B, COST, DISCOUNT = 0.8, 0.5, 0.3, 0.9
LINEAR = EnvSpec(Array((1,)), Box((1,), (-2.0,), (2.0,)))


def best_gain() -> float:
    p = 1.0
    for _ in range(1000):
        p = 1 + DISCOUNT * p * A**2 - (DISCOUNT * p * A * B) ** 2 / (COST + DISCOUNT * p * B**2)
    return DISCOUNT * p * A * B / (COST + DISCOUNT * p * B**2)


def draw_linear(key: jax.Array, rows: int) -> Drawn:
    """Steps of the task from random states, by random actions."""
    state_key, action_key = jax.random.split(key)
    s = jax.random.uniform(state_key, (rows, 1), minval=-2.0, maxval=2.0)
    u = jax.random.uniform(action_key, (rows, 1), minval=-2.0, maxval=2.0)
    row = Transitions(
        obs=s,
        mask=None,
        action=u,
        rewards=-(s**2 + COST * u**2),
        steps=jnp.ones(rows, jnp.int32),
        terminated=jnp.zeros(rows, bool),
        next_obs=A * s + B * u,
        next_mask=None,
    )
    return Drawn(row, jnp.ones(rows))


def train_on(draw, algorithm: Algorithm, state, updates: int, rows: int = 64):
    """So many updates, each of rows drawn anew."""

    def step(state, key):
        draw_key, update_key = jax.random.split(key)
        state, metrics, _ = algorithm.update(state, draw(draw_key, rows), update_key, None)
        return state, metrics

    return jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(
        state, jax.random.split(jax.random.key(5), updates)
    )


def updates_over_devices(algorithm: Algorithm, state, drawn: Drawn, key: jax.Array, devices: int):
    """The same update with its rows spread over devices."""
    spread = jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), drawn)
    update = jax.pmap(lambda rows: algorithm.update(state, rows, key, "rows"), axis_name="rows")
    return jax.tree.map(lambda x: x[0], update(spread)[0])
