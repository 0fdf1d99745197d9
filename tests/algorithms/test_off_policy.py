"""What algorithms of drawn rows share: here, what they say of actions that they cannot choose."""

import re

import numpy as np
import pytest

from podium.algorithms import registry
from podium.core.algorithm_configs import ALGORITHMS
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
