"""Environments of other packages: by Gymnasium's own form of an id, as objects, masked by a method, or of old Gym."""

import gymnasium
import numpy as np
import pytest

import podium
from envs import shelf
from podium.api import _read_env
from podium.core.config import EnvConfig
from podium.core.errors import ConfigError, EnvError
from podium.envs.registry import resolve


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig("envs.shelf:Shelf-v0"),
        EnvConfig("Shelf-v0", packages=("envs.shelf",)),
        EnvConfig("gymnasium:envs.shelf:Shelf-v0"),
        EnvConfig("envs.shelf:Shelf-v0", kwargs={"price": 2.0}),
        EnvConfig("Shelf-v0", packages=("envs.shelf",), processes=1),
    ],
    ids=["package:id", "packages", "library", "kwargs", "process"],
)
def test_a_package_is_imported_and_then_its_id_looked_up(config: EnvConfig) -> None:
    found = resolve(config)
    assert found.library == "gymnasium"
    env = found.make_host([1, 2])
    try:
        env.reset()
        assert env.step(np.array([0, 2])).reward.tolist() == [config.kwargs.get("price", 1.0)] * 2
    finally:
        env.close()


def test_a_name_is_what_is_there_and_one_that_is_both_is_refused() -> None:
    assert resolve(EnvConfig("envs.shelf:Shelf")).library == "python"
    with pytest.raises(ConfigError, match=r"is in module envs\.shelf, and an id of Gymnasium.*env\.id=gymnasium:Both"):
        resolve(EnvConfig("envs.shelf:Both"))
    with pytest.raises(
        ConfigError, match=r"envs\.shelf registers no 'Shelf-v1' with Gymnasium; did you mean 'Shelf-v0'"
    ):
        resolve(EnvConfig("envs.shelf:Shelf-v1"))
    with pytest.raises(ConfigError, match="there is no module 'nowhere'"):
        resolve(EnvConfig("nowhere:Shelf-v0"))
    with pytest.raises(ConfigError, match=r"env\.packages = 'nowhere': there is no module"):
        resolve(EnvConfig("Shelf-v0", packages=("nowhere",)))


def test_masks_of_a_method_are_read_around_wrappers_too() -> None:
    env = resolve(EnvConfig("envs.shelf:Shelf-v0", wrappers=("time_limit(3)",))).make_host([1])
    assert env.spec.masked
    first = env.reset()
    assert first.mask.tolist() == [[True, False, True, False]]
    assert env.step(np.array([2])).mask.tolist() == [[False, True, False, True]]
    env.close()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("OldReset", "OldReset.reset takes no seed, as in old Gym"),
        ("OldResult", "OldResult.reset gave ndarray, as in old Gym"),
    ],
)
def test_an_environment_of_old_gym_is_told_what_reset_must_be(name: str, told: str) -> None:
    with pytest.raises(EnvError, match=told) as refused:
        resolve(EnvConfig(f"envs.shelf:{name}"))
    assert "\n" not in str(refused.value)


def test_an_object_of_a_registered_kind_is_its_id_and_another_is_made_again_from_its_spec() -> None:
    assert _read_env(gymnasium.make("CartPole-v1", render_mode="rgb_array")) == ("CartPole-v1", None)
    env_id, make = _read_env(gymnasium.make("CartPole-v1", max_episode_steps=7))
    assert env_id == "<CartPole-v1>"
    assert make is not None
    again = make()
    again.reset(seed=0)
    assert again.spec.max_episode_steps == 7
    rescaled = gymnasium.wrappers.RescaleObservation(gymnasium.make("MountainCar-v0"), 0, 1)
    _, make = _read_env(rescaled)
    assert make is not None
    assert make().observation_space == rescaled.observation_space
    _, make = _read_env(gymnasium.make("envs.shelf:Shelf-v0", price=3.0))
    assert make is not None
    assert resolve(EnvConfig("x"), make).make_host([1]).spec.masked


def test_an_object_without_a_spec_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(
        podium.ConfigError, match=r"env = a Shelf object: .* its id, its class, or lambda: Shelf\(\.\.\.\)"
    ):
        podium.dry_run("ppo", shelf.Shelf())  # pyright: ignore[reportArgumentType]


def test_an_environment_that_draws_nothing_says_so() -> None:
    env = resolve(EnvConfig("envs.shelf:Shelf")).make_host([1], render=True)
    env.reset()
    with pytest.raises(NotImplementedError):
        env.render()
    env.close()
