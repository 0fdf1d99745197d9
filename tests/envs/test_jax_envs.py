"""JAX environments: batches that reset themselves, wrappers, gymnax, and toys with known optima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.counting import make_counting_jax
from podium.core.errors import ConfigError
from podium.core.specs import Array, Discrete
from podium.envs import gymnax, toy
from podium.envs.host_from_jax import HostFromJax
from podium.envs.interface import JaxEnv
from podium.envs.jax_wrappers import action_repeat, frame_stack, time_limit, vectorize
from podium.envs.testing import check_jax_env


def play(env: JaxEnv, steps: int, action: int = 0) -> list[tuple]:
    """(obs, reward, terminated, truncated, return, length, over) of one row."""
    host = HostFromJax(env, [0])
    found = [host.reset()] + [host.step(np.array([action])) for _ in range(steps)]
    return [
        tuple(x.reshape(1, -1)[0, -1].item() for x in (s.obs, *s[1:4], s.episode_return, s.episode_length, s[7]))
        for s in found
    ]


def test_terminated_episode_has_the_canonical_layout() -> None:
    assert play(make_counting_jax(end=2), 4) == [
        (0, 0, False, False, 0, 0, False),
        (1, 1, False, False, 1, 1, False),
        (2, 2, True, False, 3, 2, True),
        (0, 0, False, False, 0, 0, False),
        (1, 1, False, False, 1, 1, False),
    ]


def test_truncated_episode_is_not_terminated() -> None:
    steps = play(time_limit(make_counting_jax(end=99), 2), 3)
    assert steps[2:] == [(2, 2, False, True, 3, 2, True), (0, 0, False, False, 0, 0, False)]


def test_an_end_at_the_time_limit_is_terminated() -> None:
    assert play(time_limit(make_counting_jax(end=2), 2), 2)[2] == (2, 2, True, False, 3, 2, True)


def test_batch_runs_in_a_jitted_scan() -> None:
    env = vectorize(make_counting_jax(end=3))
    keys = jax.random.split(jax.random.key(0), 4)

    @jax.jit
    def run(keys: jax.Array) -> jax.Array:
        state, _ = env.reset(keys)
        _, steps = jax.lax.scan(lambda s, _: env.step(s, jnp.zeros(4, int), keys), state, length=8)
        return steps.reward

    assert run(keys)[:, 0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0]


def test_action_repeat_sums_rewards_and_stops_at_the_end() -> None:
    steps = play(action_repeat(make_counting_jax(end=5), 3), 3)
    assert [step[:3] for step in steps] == [(0, 0, False), (3, 6, False), (5, 9, True), (0, 0, False)]


def test_frame_stack_fills_with_the_first_frame() -> None:
    env = frame_stack(make_counting_jax(end=9), 3)
    host = HostFromJax(env, [0])
    assert env.spec.observation == Array((3,))
    assert host.reset().obs.tolist() == [[0, 0, 0]]
    assert host.step(np.zeros(1)).obs.tolist() == [[0, 0, 1]]
    assert host.step(np.zeros(1)).obs.tolist() == [[0, 1, 2]]


def test_wrapped_environments_conform() -> None:
    env = frame_stack(action_repeat(time_limit(toy.make_env("Masked-v0", {}), 5), 2), 2)
    check_jax_env(env, steps=30)


@pytest.mark.parametrize("env_id", toy.list_ids())
def test_toys_conform(env_id: str) -> None:
    check_jax_env(toy.make_env(env_id, {}), steps=40)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "FrozenLake-misc"])
def test_gymnax_conforms(env_id: str) -> None:
    check_jax_env(gymnax.make_env(env_id, {"max_steps_in_episode": 25}), steps=60)


def test_gymnax_terminates_where_the_pole_falls() -> None:
    steps = play(gymnax.make_env("CartPole-v1", {}), 12, action=1)
    last = next(i for i, step in enumerate(steps) if step[2])
    assert steps[last][1:] == (1, True, False, last, last, True)
    assert steps[last + 1][1:] == (0, False, False, 0, 0, False)


def test_gymnax_truncates_at_its_time_limit() -> None:
    steps = play(gymnax.make_env("CartPole-v1", {"max_steps_in_episode": 4}), 5, action=1)
    assert steps[4][1:] == (1, False, True, 4, 4, True)
    assert steps[5][1:] == (0, False, False, 0, 0, False)


def test_gymnax_refuses_an_unknown_parameter() -> None:
    with pytest.raises(ConfigError, match="no parameter 'gravit'; did you mean 'gravity'"):
        gymnax.make_env("CartPole-v1", {"gravit": 3.0})


def best_return(env_id: str, policy: object, episodes: int = 6, **kwargs: int) -> float:
    """Mean return of a policy `(obs, mask, memory) -> (action, memory)`."""
    host = HostFromJax(toy.make_env(env_id, kwargs), [3])
    step, memory, returns = host.reset(), None, []
    while len(returns) < episodes:
        mask = None if step.mask is None else step.mask[0]
        action, memory = policy(step.obs[0], mask, memory)  # type: ignore[operator]
        step = host.step(np.asarray(action)[None])
        if step.episode_over[0]:
            returns.append(float(step.episode_return[0]))
            memory = None
            step = host.step(np.asarray(action)[None])
    return float(np.mean(returns))


def follow_ball(obs: np.ndarray, mask: object, memory: object) -> tuple[int, None]:
    board = obs.reshape(10, 5)
    paddle, ball = board[-1].argmax(), board[:-1].sum(0).argmax()
    return int(np.sign(ball - paddle)) + 1, None


def recall(obs: np.ndarray, mask: object, memory: float | None) -> tuple[int, float]:
    cue = obs[0] if memory is None else memory
    return int(cue > 0), cue


@pytest.mark.parametrize(
    ("env_id", "policy", "optimum", "tolerance"),
    [
        ("Bandit-v0", lambda obs, mask, memory: (3, None), 1.0, 0.1),
        ("Chain-v0", lambda obs, mask, memory: (1, None), 9.0, 0),
        ("Chain-v0", lambda obs, mask, memory: (0, None), 5.0, 0),
        ("Catch-v0", follow_ball, 1.0, 0),
        ("Memory-v0", recall, 1.0, 0),
        ("Masked-v0", lambda obs, mask, memory: (mask.argmax(), None), 8.0, 0),
        ("Masked-v0", lambda obs, mask, memory: (mask.argmin(), None), -1.0, 0),
        ("Target-v0", lambda obs, mask, memory: (np.array([obs[1], -obs[0]]) / 2, None), 0.0, 1e-5),
        ("MultiTarget-v0", lambda obs, mask, memory: ([obs[:3].argmax(), obs[3:].argmax()], None), 1.0, 0),
    ],
)
def test_toys_have_the_optimum_they_document(env_id: str, policy: object, optimum: float, tolerance: float) -> None:
    assert best_return(env_id, policy) == pytest.approx(optimum, abs=tolerance)


def test_toys_check_their_arguments() -> None:
    assert toy.make_env("Catch-v0", {"rows": 6}).spec.observation == Array((30,))
    assert toy.make_env("Bandit-v0", {"arms": 7}).spec.action == Discrete(7)
    with pytest.raises(ConfigError, match="no 'row'; did you mean 'rows'"):
        toy.make_env("Catch-v0", {"row": 6})
