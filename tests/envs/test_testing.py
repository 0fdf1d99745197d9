"""The conformance suite finds the promises that an environment breaks."""

from collections.abc import Callable

import numpy as np
import pytest

from envs.counting import Counting, make_counting_jax
from podium.core.errors import BrokenPromiseError
from podium.core.types import Tree
from podium.envs import toy
from podium.envs.gymnasium import GymnasiumEnv
from podium.envs.host_from_jax import HostFromJax
from podium.envs.interface import TimeStep
from podium.envs.own_host import OwnHost
from podium.envs.testing import check_host_env
from podium.envs.wrappers import HostFrameStack


class Bent(GymnasiumEnv):
    """Counting, with each step changed by a function."""

    def __init__(self, seeds: list[int], bend: Callable[[TimeStep], TimeStep]) -> None:
        super().__init__(lambda: Counting(end=3), seeds)
        self.bend = bend

    def recv(self) -> TimeStep:
        return self.bend(super().recv())


@pytest.mark.parametrize(
    ("bend", "promise"),
    [
        (lambda s: s._replace(reward=s.reward.astype(float)), r"reward is float32\[3\], not float64"),
        (lambda s: s._replace(obs=s.obs[:, 0]), r"obs is float32\[3, 1\], not float32\[3\]"),
        (lambda s: s._replace(obs=s.obs * np.nan), "obs is finite"),
        (lambda s: s._replace(truncated=s.terminated), "terminated or truncated, not both"),
        (lambda s: s._replace(reward=s.reward + 1), "a reset row has reward 0|adds up the rewards"),
        (lambda s: s._replace(episode_over=~s.episode_over), "episode_over comes with an end"),
        (lambda s: s._replace(episode_length=s.episode_length * 0), "episode_length counts steps"),
        (lambda s: s._replace(episode_return=s.episode_return * 2), "episode_return adds up the rewards"),
        (lambda s: s._replace(mask=np.ones((3, 2), bool)), "a mask if and only if spec.masked"),
    ],
)
def test_a_broken_promise_is_named(bend: Callable[[TimeStep], TimeStep], promise: str) -> None:
    with pytest.raises(BrokenPromiseError, match=promise):
        check_host_env(lambda seeds: Bent(seeds, bend), steps=8)


def test_randomness_that_no_seed_controls_is_found() -> None:
    random = np.random.default_rng()
    noise = lambda s: s._replace(obs=s.obs + random.random(s.obs.shape, np.float32))  # noqa: E731
    with pytest.raises(BrokenPromiseError, match="the same seeds and actions give the same steps"):
        check_host_env(lambda seeds: Bent(seeds, noise), steps=8)


def test_arrays_that_change_too_early_are_found() -> None:
    class Single(GymnasiumEnv):
        def __init__(self, seeds: list[int]) -> None:
            super().__init__(lambda: Counting(end=3), seeds)
            self._steps = [self._steps[0]] * 2

    with pytest.raises(BrokenPromiseError, match="untouched by the next send"):
        check_host_env(Single, steps=8)


def test_a_load_that_forgets_is_found() -> None:
    class Forgetful(HostFromJax):
        def load(self, saved: Tree) -> TimeStep:
            return self.recv()

    with pytest.raises(BrokenPromiseError, match="what was loaded goes on where it was saved"):
        check_host_env(lambda seeds: Forgetful(make_counting_jax(end=3), seeds), steps=10)


def test_what_an_own_batch_saves_reaches_the_checkpoint_through_a_stack_of_frames_too() -> None:
    def make(seeds: list[int]) -> OwnHost:
        return OwnHost(HostFromJax(toy.make_catch(), seeds), seeds)

    for wrap in (lambda env: env, lambda env: HostFrameStack(env, 3)):
        env = wrap(make([0]))
        env.reset()
        assert env.save() is not None
        check_host_env(lambda seeds, wrap=wrap: wrap(make(seeds)), steps=30)
