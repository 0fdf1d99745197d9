"""Gymnasium environments, in this process and over several."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
import pytest

from envs.counting import Broken, Counting, Echo, Picture, Rich, Succeeding
from podium.core.errors import EnvError
from podium.core.specs import Array, Box, Discrete, MultiDiscrete
from podium.envs.gymnasium import GymnasiumEnv
from podium.envs.gymnasium_rows import examine
from podium.envs.gymnasium_wrappers import wrapping
from podium.envs.interface import HostEnv
from podium.envs.processes import ProcessesEnv
from podium.envs.testing import check_host_env, copy_step
from podium.envs.wrappers import Wrapper

Adapter = Callable[..., HostEnv]
ADAPTERS = [GymnasiumEnv, partial(ProcessesEnv, processes=2)]
IDS = ["in process", "over processes"]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=IDS)
class TestBothAdapters:
    def test_terminated_episode_has_the_canonical_layout(self, adapter: Adapter) -> None:
        env = adapter(lambda: Counting(end=3), seeds=[1, 2])
        steps = [row(env.reset())] + [row(env.step(np.zeros(2, int))) for _ in range(5)]
        env.close()
        #                 obs reward term  trunc  return length over
        assert steps == [
            (0, 0, False, False, 0, 0, False),
            (1, 1, False, False, 1, 1, False),
            (2, 2, False, False, 3, 2, False),
            (3, 3, True, False, 6, 3, True),
            (0, 0, False, False, 0, 0, False),
            (1, 1, False, False, 1, 1, False),
        ]

    def test_truncated_episode_is_not_terminated(self, adapter: Adapter) -> None:
        env = adapter(lambda: Counting(end=99, limit=2), seeds=[1])
        env.reset()
        steps = [row(env.step(np.zeros(1, int))) for _ in range(3)]
        env.close()
        assert steps == [
            (1, 1, False, False, 1, 1, False),
            (2, 2, False, True, 3, 2, True),
            (0, 0, False, False, 0, 0, False),
        ]

    def test_an_error_has_traceback_index_and_seed(self, adapter: Adapter) -> None:
        env = adapter(Broken, seeds=[6, 7])
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(EnvError, match=r"(?s)environment 1 \(seed 7\) raised in step.*ZeroDivisionError: the wh"):
            env.step(np.zeros(2, int))
        env.close()

    @pytest.mark.parametrize(("how", "message"), [("shape", r"shape \(7,\).*says \(1,\)"), ("dtype", "dtype|shape")])
    def test_a_wrong_observation_is_an_error(self, adapter: Adapter, how: str, message: str) -> None:
        env = adapter(partial(Broken, how), seeds=[7])
        env.reset()
        env.step(np.zeros(1, int))
        with pytest.raises(EnvError, match=message):
            env.step(np.zeros(1, int))
        env.close()

    def test_renders_the_first_environment(self, adapter: Adapter) -> None:
        env = adapter(lambda: Counting(render_mode="rgb_array"), seeds=[1, 2])
        env.reset()
        env.step(np.zeros(2, int))
        assert env.render().shape == (4, 6, 3)
        assert (env.render() == 1).all()
        env.close()

    def test_conforms_on_cartpole(self, adapter: Adapter) -> None:
        check_host_env(partial(adapter, partial(gymnasium.make, "CartPole-v1")), steps=60)

    def test_conforms_on_nested_observations_and_masks(self, adapter: Adapter) -> None:
        check_host_env(partial(adapter, Rich), steps=12)

    def test_metrics_are_those_of_an_episode_s_last_info_and_nan_where_it_has_none(self, adapter: Adapter) -> None:
        spec = examine(Succeeding, metrics=("distance", "is_success"))[0]
        check_host_env(partial(adapter, Succeeding, spec=spec), steps=20)
        env = adapter(Succeeding, seeds=[1, 2], spec=spec)
        env.reset()
        steps = [copy_step(env.step(np.zeros(2, int))) for _ in range(16)]
        env.close()
        ends = [step.metrics[0].tolist() for step in steps if step.episode_over[0]]
        np.testing.assert_array_equal(ends, [[np.nan, 0]] * 3 + [[7, 1]])


def row(step: object) -> tuple:
    """The first row as plain numbers."""
    obs, reward, terminated, truncated, _, total, length, over, _ = step  # type: ignore[misc]
    return tuple(x[0].item() for x in (obs[:, 0], reward, terminated, truncated, total, length, over))


def test_each_environment_starts_from_its_own_seed() -> None:
    env = GymnasiumEnv(partial(gymnasium.make, "CartPole-v1"), seeds=[5, 6])
    alone, _ = gymnasium.make("CartPole-v1").reset(seed=6)
    np.testing.assert_array_equal(env.reset().obs[1], alone)


def test_specs_of_every_space() -> None:
    env = GymnasiumEnv(partial(Rich, parts=True), seeds=[1])
    assert env.spec.observation == {
        "image": Array((8, 8, 3), "uint8"),
        "inner": {"speed": Array((2,)), "gear": Array((3,))},
    }
    assert env.spec.action == MultiDiscrete((2, 3))
    step = env.reset()
    np.testing.assert_array_equal(step.mask, [[True, False, False, True, True]])
    np.testing.assert_array_equal(step.obs["inner"]["gear"], [[1, 0, 0]])
    assert GymnasiumEnv(Counting, [1]).spec.action == Discrete(2)
    assert GymnasiumEnv(Echo, [1]).spec.action == Box((2, 1), (-1.0, -2.0), (1.0, 3.0))


def test_continuous_actions_are_clipped_to_their_bounds() -> None:
    env = GymnasiumEnv(Echo, seeds=[1])
    env.reset()
    assert env.step(np.array([[[-9.0], [9.0]]])).reward.tolist() == [-1 + 3]


@pytest.mark.parametrize(("how", "message"), [("die", "died: killed by SIGKILL"), ("hang", "within 2 s")])
def test_a_lost_process_is_named_and_close_leaves_none(how: str, message: str) -> None:
    env = ProcessesEnv(partial(Broken, how), seeds=[6, 7], processes=2, limit_s=2.0)
    env.reset()
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=rf"environment process 1 \(environments 1 to 1\).*{message}"):
        env.step(np.zeros(2, int))
    env.close()
    assert multiprocessing.active_children() == []


def test_a_killed_idle_process_is_noticed() -> None:
    env = ProcessesEnv(Counting, seeds=[1, 2, 3], processes=2)
    env.reset()
    os.kill(env._processes[1].pid, signal.SIGKILL)
    env._processes[1].join(10)
    with pytest.raises(EnvError, match=r"environment process 1 \(environments 1 to 2\) died"):
        env.step(np.zeros(3, int))
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("shape", "image", "place"),
    [
        ((20, 16), (20, 16, 1), (19, 15, 0)),
        ((3, 20, 16), (20, 16, 3), (19, 15, 2)),
        ((20, 16, 3), (20, 16, 3), (19, 15, 2)),
        ((8, 8, 20), (8, 8, 20), (7, 7, 19)),
        ((16, 16, 16), (16, 16, 16), (15, 15, 15)),
    ],
)
def test_pictures_are_height_width_channels(shape: tuple, image: tuple, place: tuple) -> None:
    env = GymnasiumEnv(lambda: Picture(shape), seeds=[1, 2])
    assert env.spec.observation == Array(image, "uint8")
    env.reset()
    step = env.step(np.zeros(2, int))
    assert step.obs.shape == (2, *image)
    assert step.obs[1][place] == 1
    assert np.count_nonzero(step.obs[0] == 4) == np.prod(shape) // 5 - (np.prod(shape) % 5 == 0)


def test_frames_of_channels_first_pictures_are_stacked_along_their_channels() -> None:
    wrap = wrapping([Wrapper("frame_stack", 2)])
    env = GymnasiumEnv(lambda: Picture((3, 20, 16)), [1], wrap)
    env.reset()
    step = env.step(np.zeros(1, int))
    assert step.obs.shape == (1, 20, 16, 6)
    assert step.obs[0, 19, 15, [2, 5]].tolist() == [0, 1]


@pytest.mark.parametrize(("high", "scaled"), [(255, 2 / 255), (9, 2 / 9)])
@pytest.mark.parametrize("shape", [(128,), (8, 8)])
def test_bytes_that_are_no_picture_are_scaled_between_their_bounds(shape: tuple, high: int, scaled: float) -> None:
    env = GymnasiumEnv(lambda: Picture(shape, high), seeds=[1])
    assert env.spec.observation == Array(shape)
    env.reset()
    env.step(np.zeros(1, int))
    assert env.step(np.zeros(1, int)).obs[0].reshape(-1)[-1] == pytest.approx(scaled)
