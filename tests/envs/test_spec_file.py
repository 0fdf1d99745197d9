"""A spec and a codec survive their text: what a policy is loaded with is what it was trained with."""

import numpy as np
import pytest
from gymnasium import spaces

from podium.core.config import EnvConfig
from podium.core.specs import EnvSpec
from podium.envs import registry
from podium.envs.codecs import Codec
from podium.envs.spaces import action_form, action_spec, observation_form, observation_spec
from podium.envs.spec_file import dump_spec, load_spec

OBSERVATIONS = spaces.Dict(
    {
        "floats": spaces.Box(-np.inf, np.inf, (2, 2)),
        "gear": spaces.Discrete(3, start=-1),
        "plan": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -2]]),
        "camera": spaces.Box(0, 255, (3, 32, 32), np.uint8),
        "ram": spaces.Box(np.uint8([0, 3]), np.uint8([9, 255])),
        "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, ())]),
    }
)
ACTIONS = [
    spaces.Discrete(3, start=5),
    spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[5, 0], [-2, 7]]),
    spaces.MultiBinary((2, 1)),
    spaces.Box(np.float64([-0.1, -np.inf]), np.float64([0.1, np.inf]), dtype=np.float64),
]


@pytest.mark.parametrize("action", ACTIONS, ids=["discrete", "multi-discrete", "multi-binary", "box"])
def test_spec_and_codec_are_the_same_after_they_were_text(action: spaces.Space) -> None:
    spec = EnvSpec(observation_spec(OBSERVATIONS), action_spec(action), masked=True, agents=("a", "b"))
    codec = Codec(observation_form(OBSERVATIONS), action_form(action))
    again, same = load_spec(dump_spec(spec, codec))
    assert again == spec
    OBSERVATIONS.seed(0)
    observation = OBSERVATIONS.sample()
    before, after = codec.encode(observation), same.encode(observation)
    assert before[1] is after[1] is False
    assert np.array_equal(before[0]["ram"], after[0]["ram"])
    assert np.array_equal(before[0]["plan"], after[0]["plan"])
    assert before[0]["camera"].shape == after[0]["camera"].shape == (1, 32, 32, 3)
    raw = (
        np.array([[1.5, 7.0]], np.float32) if isinstance(action, spaces.Box) else np.ones((1, action_size(action)), int)
    )
    raw = raw[:, 0] if isinstance(action, spaces.Discrete) else raw
    one, two = codec.decode(raw), same.decode(raw)
    assert one.dtype == two.dtype
    assert np.array_equal(one, two)
    assert action.contains(one[0] if action.shape else np.int64(one[0]))


def action_size(space: spaces.Space) -> int:
    return int(np.prod(space.shape or (1,)))


@pytest.mark.parametrize("env_id", ["gymnasium:Pendulum-v1", "CartPole-v1", "podium:Catch-v0"])
def test_specs_of_every_library_have_a_text(env_id: str) -> None:
    env = registry.resolve(EnvConfig(env_id))
    spec, codec = load_spec(dump_spec(env.spec, env.codec))
    assert spec == env.spec
    assert codec.form == env.codec.form


def test_a_bound_of_the_environment_s_own_precision_holds() -> None:
    space = spaces.Box(np.float64(-0.1), np.float64(0.1), (1,), np.float64)
    assert space.contains(action_form(space).decode(np.float32([[0.1]]))[0])
