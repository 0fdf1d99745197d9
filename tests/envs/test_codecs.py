"""What an environment's user sees, and what a policy does, are the same observation and the same action."""

import gymnasium
import numpy as np
import pytest

from envs.counting import Counting, Picture
from podium.core.config import EnvConfig
from podium.core.errors import ConfigError
from podium.envs.codecs import Codec
from podium.envs.registry import resolve


def codec(env: object) -> Codec:
    return resolve(EnvConfig("own"), factory=env).codec


def test_a_choice_counts_from_its_space_s_start() -> None:
    assert codec(Counting).decode(np.int32([0, 1, 0])).tolist() == [5, 6, 5]


@pytest.mark.parametrize("library", ["gymnasium", "envpool"])
def test_a_number_is_an_observation_whichever_library_steps_it(library: str) -> None:
    own = resolve(EnvConfig(f"{library}:FrozenLake-v1")).codec
    with gymnasium.make("FrozenLake-v1") as env:
        obs, _ = env.reset(seed=0)
        assert env.action_space.contains(own.decode(np.int32([3]))[0])
    row, batched = own.encode(obs)
    assert (row.tolist(), batched) == ([[1.0] + [0.0] * 15], False)
    rows, batched = own.encode(np.array([0, 2]))
    assert (rows.argmax(1).tolist(), rows.sum(), batched) == ([0, 2], 2, True)


@pytest.mark.parametrize("shape", [(1, 16, 20), (16, 20), (16, 20, 1)])
def test_a_picture_may_come_in_any_layout(shape: tuple[int, ...]) -> None:
    own = codec(lambda: Picture(shape))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 20, 1), np.uint8)
    for batch in (pixels, pixels[..., 0], pixels.transpose(0, 3, 1, 2)):
        rows, batched = own.encode(batch)
        assert batched
        assert (rows == pixels).all()
        row, batched = own.encode(batch[1])
        assert not batched
        assert (row == pixels[1]).all()
    with pytest.raises(ConfigError, match="of dtype float64: must be an integer"):
        own.encode(pixels / 255)


def test_bytes_are_scaled_as_in_training() -> None:
    rows, batched = codec(lambda: Picture((3,), high=10)).encode(np.uint8([0, 5, 10]))
    assert (rows.tolist(), batched) == ([[0.0, 0.5, 1.0]], False)


def test_envpool_scales_bytes_that_are_no_picture_too() -> None:
    found = resolve(EnvConfig("envpool:MiniGrid-Empty-5x5-v0"))
    env = found.make_host([1])
    mission = env.reset().obs["mission"]
    env.close()
    assert found.spec == env.spec
    assert mission.dtype == np.float32
    assert 0 < mission.max() <= 1
