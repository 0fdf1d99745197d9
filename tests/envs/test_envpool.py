"""EnvPool: order, seeds, layout at ends, bounds, Atari lives, repeated actions."""

import numpy as np
import pytest

from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete
from podium.envs.envpool import EnvPoolEnv, make_spec
from podium.envs.testing import check_host_env


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "FrozenLake-v1", "LunarLander-v3"])
def test_conforms(env_id: str) -> None:
    check_host_env(lambda seeds: EnvPoolEnv(env_id, seeds, threads=2), steps=150)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5"])
def test_mujoco_conforms(env_id: str) -> None:
    check_host_env(lambda seeds: EnvPoolEnv(env_id, seeds, threads=2, kwargs={"max_episode_steps": 30}), steps=80)


def test_atari_conforms() -> None:
    kwargs = {"episodic_life": True, "reward_clip": True, "max_episode_steps": 60}
    check_host_env(lambda seeds: EnvPoolEnv("Breakout-v5", seeds, 2, kwargs), steps=150, clips_rewards=True)


def test_dict_observations_conform() -> None:
    make = lambda seeds: EnvPoolEnv("MiniGrid-Empty-5x5-v0", seeds, 1)  # noqa: E731
    check_host_env(make, steps=120)
    assert set(make([1]).spec.observation) == {"direction", "image", "mission"}


def test_rows_come_back_in_the_order_they_were_sent() -> None:
    env = EnvPoolEnv("CartPole-v1", seeds=range(40), threads=2)
    env.reset()
    random = np.random.default_rng(0)
    for _ in range(200):
        env.send(random.integers(0, 2, 40))
        values = env._pool._recv()
        np.testing.assert_array_equal(values[env._places["info:env_id"]], np.arange(40))


def test_known_rewards_at_termination() -> None:
    env = EnvPoolEnv("CartPole-v1", seeds=[3])
    env.reset()
    rewards, step = [], None
    while step is None or not step.terminated[0]:
        step = env.step(np.ones(1, int))
        rewards.append(step.reward[0])
    assert rewards == [1.0] * len(rewards)
    assert (step.episode_return[0], step.episode_length[0], step.episode_over[0]) == (len(rewards), len(rewards), True)
    assert not step.truncated[0]
    step = env.step(np.ones(1, int))
    assert (step.reward[0], step.terminated[0], step.episode_return[0], step.episode_length[0]) == (0, False, 0, 0)
    assert (np.abs(step.obs) < 0.05).all()
    assert env.step(np.ones(1, int)).episode_return[0] == 1


def test_the_time_limit_truncates_and_does_not_terminate() -> None:
    env = EnvPoolEnv("Pendulum-v1", seeds=[1, 2])
    env.reset()
    steps = [env.step(np.zeros((2, 1))) for _ in range(201)]
    assert [bool(step.truncated.all()) for step in steps] == [False] * 199 + [True, False]
    assert not any(step.terminated.any() for step in steps)
    assert steps[199].episode_over.all()
    total = np.sum([step.reward for step in steps[:200]], axis=0)
    np.testing.assert_allclose(steps[199].episode_return, total, rtol=1e-4)
    assert steps[200].reward.tolist() == [0, 0]


def test_an_end_in_the_very_step_of_the_limit_is_told_as_truncated() -> None:
    """Here libraries differ (docs/environments.md): EnvPool does not tell that it was an end as well."""

    def last_step(limit: int) -> tuple[int, bool, bool]:
        env = EnvPoolEnv("CartPole-v1", [3], kwargs={"max_episode_steps": limit})
        env.reset()
        while True:
            step = env.step(np.ones(1, int))
            if step.episode_over[0]:
                return int(step.episode_length[0]), bool(step.terminated[0]), bool(step.truncated[0])

    length, *ends = last_step(500)
    assert ends == [True, False]
    assert last_step(length) == (length, False, True)


def test_a_row_depends_on_its_own_seed() -> None:
    one, other = EnvPoolEnv("HalfCheetah-v5", [1, 2]).reset().obs, EnvPoolEnv("HalfCheetah-v5", [2, 1]).reset().obs
    np.testing.assert_array_equal(one, other[::-1])
    assert not np.array_equal(one[0], one[1])


def test_actions_are_clipped_to_their_bounds() -> None:
    wild, tame = EnvPoolEnv("HalfCheetah-v5", [1]), EnvPoolEnv("HalfCheetah-v5", [1])
    wild.reset()
    tame.reset()
    np.testing.assert_array_equal(wild.step(np.full((1, 6), 50.0)).reward, tame.step(np.ones((1, 6))).reward)


def test_metrics_are_numbers_of_its_info() -> None:
    names, kwargs = ("x_velocity", "is_success", "x_position"), {"max_episode_steps": 5}
    env = EnvPoolEnv("HalfCheetah-v5", [1, 2], kwargs=kwargs, metrics=names)
    assert env.spec.metrics == ("x_velocity", "x_position"), "it has no is_success"
    env.reset()
    before, after = (env.step(np.ones((2, 6))).metrics for _ in range(2))
    np.testing.assert_allclose(after[:, 1] - before[:, 1], 0.05 * after[:, 0], atol=1e-5)
    check_host_env(lambda seeds: EnvPoolEnv("HalfCheetah-v5", seeds, 2, kwargs, metrics=names), steps=12)


def test_specs() -> None:
    spec = make_spec("HalfCheetah-v5", {})
    assert (spec.observation, spec.action) == (Array((17,)), Box((6,), (-1.0,) * 6, (1.0,) * 6))
    spec = make_spec("Pong-v5", {})
    assert (spec.observation, spec.action) == (Array((84, 84, 4), "uint8"), Discrete(6))
    with pytest.raises(ConfigError, match="has no 'max_episode_step'; did you mean 'max_episode_steps'"):
        make_spec("CartPole-v1", {"max_episode_step": 3})


def test_a_lost_life_ends_an_episode_but_not_the_game() -> None:
    env = EnvPoolEnv("Breakout-v5", [1], 1, {"episodic_life": True, "reward_clip": True})
    env.reset()
    ends, random = [], np.random.default_rng(0)
    while not (ends and ends[-1]):
        step = env.step(random.integers(0, 4, 1))
        if step.terminated[0]:
            ends.append(bool(step.episode_over[0]))
    assert ends == [False] * 4 + [True]


def test_a_repeated_action_sums_rewards_and_stops_at_the_end() -> None:
    env, plain = EnvPoolEnv("CartPole-v1", [4, 5], repeat=4), EnvPoolEnv("CartPole-v1", [4, 5])
    env.reset()
    plain.reset()
    lengths = np.zeros(2, int)
    alive = np.ones(2, bool)
    while alive.any():
        step = plain.step(np.ones(2, int))
        lengths += alive
        alive &= ~step.terminated
    total = np.zeros(2)
    alive = np.ones(2, bool)
    while alive.any():
        step = env.step(np.ones(2, int))
        total += np.where(alive, step.reward, 0)
        alive &= ~step.terminated
    np.testing.assert_array_equal(total, lengths)
    check_host_env(lambda seeds: EnvPoolEnv("CartPole-v1", seeds, repeat=3), steps=60)
