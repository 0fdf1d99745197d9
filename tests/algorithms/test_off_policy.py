"""What algorithms of drawn rows share: experience, actions that they cannot choose, and what they report."""

import re
from dataclasses import fields

import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import registry
from podium.algorithms.algorithm import Drawn, Replay, Transitions
from podium.algorithms.off_policy import experience, regress, weigh
from podium.algorithms.optimizers import start
from podium.core.algorithm_configs import ALGORITHMS, SACConfig
from podium.core.config import EnvConfig, Experiment
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete, EnvSpec, MultiDiscrete


def make(name: str, spec: EnvSpec) -> None:
    registry.make(Experiment(algorithm=ALGORITHMS[name](), env=EnvConfig("podium:Catch-v0")), spec)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
@pytest.mark.parametrize(
    "action",
    [Discrete(3), MultiDiscrete((3, 2)), Box((1,), (-1.0,), (1.0,)), Box((1,), (-np.inf,), (np.inf,))],
    ids=str,
)
def test_who_is_named_in_place_of_a_refused_algorithm_can_choose_the_actions(name, action):
    spec = EnvSpec(Array((3,)), action)
    if isinstance(action, Discrete if name == "dqn" else Box) and getattr(action, "is_bounded", True):
        make(name, spec)
        return
    with pytest.raises(
        ConfigError, match=rf"^algorithm\.name = '{name}': .*, but they are .*; use [a-z0-9, ]+$"
    ) as refused:
        make(name, spec)
    others = re.split(", | or ", str(refused.value).rpartition("use ")[2])
    assert len(others) >= 2
    for other in others:
        make(other, spec)


def test_an_environment_without_actions_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="there is nothing to choose"):
        make("sac", EnvSpec(Array((3,)), Box((0,), (), ())))


def test_every_field_of_the_experience_is_what_the_configuration_says():
    config = SACConfig(
        fragment_length=16,
        gamma=0.9,
        batch_size=32,
        buffer_size=5_000,
        learning_starts=100,
        update_ratio=0.5,
        n_step=3,
        priority_exponent=0.6,
        priority_correction=0.7,
        exploration_spread=0.01,
    )
    asked = Replay(
        length=16,
        discount=0.9,
        batch_size=2,  # sequences of 16 steps
        capacity=5_000,
        starts=100,
        ratio=0.5,
        n_step=3,
        sequences=True,
        priority_exponent=0.6,
        priority_correction=0.7,
        spread=0.01,
    )
    assert experience(config, sequences=True) == asked
    assert [field.name for field in fields(Replay) if getattr(asked, field.name) == field.default] == []


def test_losses_are_weighed_for_priorities_and_what_is_reported_is_a_plain_mean():
    rows = Transitions(*[np.zeros(4, np.float32)] * 8)
    rows, share = weigh(Drawn(rows, np.array([1.0, 0.5, 0.5, 0.0], np.float32)), axis=None)
    assert share.weighed.tolist() == pytest.approx([1 / 3, 1 / 6, 1 / 6, 0])
    assert share.plain.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])

    def apply(value, obs, action):
        return value * jnp.array([[1.0, 2.0, 3.0, 4.0]] * 2)

    critics = start(jnp.float32(2.0))
    _, metrics, _ = regress(critics, apply, rows, share, jnp.zeros((1, 4)), jnp.zeros(4), jnp.float32(0.1), axis=None)
    assert float(metrics["q"]) == pytest.approx((2 + 4 + 6) / 3)
    assert float(metrics["critic_loss"]) == pytest.approx(2 * 0.5 * (4 / 3 + 16 / 6 + 36 / 6))
