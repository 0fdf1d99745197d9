"""Choices that a plan makes, and what it refuses before anything starts."""

from dataclasses import replace

import pytest

from envs.counting import Picture
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.launch.plan import draw, make_plan


def experiment(env: str = "podium:Catch-v0", num_envs: int = 16, minibatch: int = 64, **topology) -> Experiment:
    return Experiment(
        algorithm=PPOConfig(fragment_length=16, minibatch_size=minibatch),
        env=EnvConfig(env, num_envs=num_envs),
        topology=TopologyConfig(**topology),
    )


def test_the_mode_follows_the_environment_and_is_stored() -> None:
    fused, inline = make_plan(experiment()), make_plan(experiment("gymnasium:CartPole-v1"))
    assert (fused.mode, fused.experiment.topology.mode, fused.experiment.topology.devices) == ("fused", "fused", 1)
    assert (inline.mode, inline.experiment.topology.mode, inline.experiment.topology.slots) == ("inline", "inline", 1)
    assert "mode inline: the environment runs on the host" in draw(inline)


def test_fused_needs_a_jax_environment() -> None:
    with pytest.raises(ConfigError, match=r"topology.mode = 'fused': CartPole-v1 is not a JAX environment; use inline"):
        make_plan(experiment("CartPole-v1", mode="fused"))


def test_cores_share_a_minibatch_only_where_each_has_thousands_of_its_rows() -> None:
    large = replace(experiment(num_envs=1024, minibatch=8192), algorithm=PPOConfig(minibatch_size=8192))
    assert make_plan(large).devices == 2
    assert make_plan(experiment()).devices == 1


def test_devices_that_cannot_share_the_blocks_of_a_minibatch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"topology.devices = 3: must divide 8, the blocks"):
        make_plan(experiment(devices=3))
    recurrent = replace(experiment(minibatch=16, devices=2), network=NetworkConfig(memory="gru"))
    with pytest.raises(ConfigError, match=r"topology.devices = 2: must divide 1, the blocks"):
        make_plan(recurrent)


def test_slots_must_divide_the_environments() -> None:
    with pytest.raises(ConfigError, match=r"topology.slots = 3: must divide env.num_envs = 16"):
        make_plan(experiment("gymnasium:CartPole-v1", slots=3))


@pytest.mark.parametrize(("shape", "said"), [((20, 16), True), ((20,), False)], ids=["pictures", "bytes as floats"])
def test_normalising_that_does_nothing_is_said(shape: tuple[int, ...], said: bool) -> None:
    asked = replace(experiment("mine"), algorithm=PPOConfig(normalize_observations=True))
    notes = make_plan(asked, lambda: Picture(shape)).notes
    assert any("algorithm.normalize_observations does nothing here" in note for note in notes) == said
