"""Presets are found by algorithm and environment, and each makes a valid experiment."""

import pytest

from podium.core.errors import ConfigError
from podium.core.presets import find_preset, list_presets
from podium.core.settings import resolve
from podium.core.specs import Array, Discrete, EnvSpec

TASKS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3"]
ROBOTS = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"]


@pytest.mark.parametrize("name", [name for name in list_presets() if not name.startswith("topology/")])
def test_every_preset_resolves_and_its_minibatches_fit_the_fragment(name: str) -> None:
    algorithm, _, env = name.partition("/")
    env = env.replace("GAME", "Qbert")
    found = resolve(algorithm, env)
    assert found.preset == name
    settings = found.experiment.algorithm
    rows = found.experiment.rows_per_update(EnvSpec(Array(()), Discrete(2)))
    assert rows % (getattr(settings, "minibatch_size", None) or 1) == 0


@pytest.mark.parametrize(
    ("name", "mode", "transport"),
    [("impala", "inline", "shm"), ("seed", "served", "shm"), ("decoupled", "served", "tcp")],
)
def test_an_architecture_is_a_preset_of_the_topology_beside_that_of_the_task(
    name: str, mode: str, transport: str
) -> None:
    experiment = resolve("ppo", "CartPole-v1", topology=name, overrides=["topology.actors=4"]).experiment
    assert (experiment.topology.mode, experiment.topology.transport, experiment.topology.actors) == (mode, transport, 4)
    assert experiment.env.num_envs == 8


def test_an_unknown_architecture_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"topology = 'sead': must be one of impala, seed, decoupled; did you mean 'seed'"
    ):
        resolve("ppo", "CartPole-v1", topology="sead")


@pytest.mark.parametrize("env", TASKS + ROBOTS)
def test_ppo_has_a_preset_for(env: str) -> None:
    assert f"ppo/{env}" in list_presets()


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("HalfCheetah-v5", "ppo/HalfCheetah-v5"),
        ("HalfCheetah-v4", "ppo/HalfCheetah-v5"),
        ("envpool:HalfCheetah-v4", "ppo/HalfCheetah-v5"),
        ("gymnax:CartPole-v1", "ppo/CartPole-v1"),
        ("LunarLander-v2", "ppo/LunarLander-v3"),
        ("my_module:Hopper", None),
        ("CartPoleSwingUp-v1", None),
    ],
)
def test_library_and_version_do_not_matter_but_the_task_does(env: str, name: str | None) -> None:
    found = find_preset("ppo", env)
    assert (found and found[0]) == name


@pytest.mark.parametrize("algorithm", ["impala", "appo", "dqn"])
@pytest.mark.parametrize("env", ["Pong-v5", "envpool:Pong-v5", "ALE/Pong-v5", "gymnasium:ALE/Pong-v5"])
def test_a_game_has_its_preset_in_whichever_library(algorithm: str, env: str) -> None:
    found = find_preset(algorithm, env)
    assert found is not None
    assert found[0] == f"{algorithm}/ALE/Pong-v5"


@pytest.mark.parametrize(
    "env", ["ALE/Pong-v5", "PongNoFrameskip-v4", "PongDeterministic-v0", "Pong-v4", "envpool:Pong-v5", "ALE/UpNDown-v5"]
)
def test_ppo_has_a_preset_for_every_atari_game_by_whatever_name(env: str) -> None:
    found = resolve("ppo", env)
    assert found.preset == "ppo/ALE/GAME-v5"
    assert found.experiment.env.wrappers == ("atari",)


@pytest.mark.parametrize("env", ["ALE/Pong-ram-v5", "Pong-ram-v0", "envpool:Swimmer-v5"])
def test_what_is_no_game_of_pixels_takes_no_preset_of_games(env: str) -> None:
    assert find_preset("ppo", env) is None


def test_an_algorithm_of_ones_own_has_no_preset() -> None:
    assert find_preset("my_module:ppo", "CartPole-v1") is None
