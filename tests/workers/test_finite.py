"""Numbers that are not finite are found where something could be learned from them, on the host and in XLA."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from podium.workers.finite import OBSERVATION, REWARD, decode_fault, encode_fault, find_fault

T, R = 4, 3


def make(**places: Any) -> Any:
    """A fragment without faults, and nan in some places: `make(obs=(2, 1), terminated=(1, 1))`."""
    arrays = {
        "obs": np.ones((T + 1, R, 2), np.float32),
        "reward": np.ones((T, R), np.float32),
        "valid": np.ones((T, R), bool),
        "terminated": np.zeros((T, R), bool),
        "first": np.zeros((T + 1, R), bool),
    }
    for name, place in places.items():
        arrays[name][place] = {"obs": np.nan, "reward": np.inf, "valid": False}.get(name, True)
    return SimpleNamespace(**arrays | {"obs": {"a": arrays["obs"], "b": np.zeros((T + 1, R), np.uint8)}})


@pytest.mark.parametrize(
    ("fragment", "found"),
    [
        (make(), None),
        (make(reward=(2, 1)), (2, 1, REWARD)),
        (make(reward=(2, 1), valid=(2, 1)), None),  # a reset row
        (make(obs=(2, 1)), (2, 1, OBSERVATION)),
        (make(obs=(4, 2)), (4, 2, OBSERVATION)),
        (make(obs=(2, 1), terminated=(1, 1)), None),  # after an end by itself
        (make(obs=(2, 1), terminated=(1, 0)), (2, 1, OBSERVATION)),
        (make(obs=(0, 1)), None),  # told already, as the last of the fragment before
        (make(obs=(0, 1), first=(0, 1)), (0, 1, OBSERVATION)),
        (make(obs=(3, 0), reward=(2, 2)), (2, 2, REWARD)),  # the earlier one
    ],
)
def test_the_first_fault_is_found_on_the_host_and_in_xla(fragment: Any, found: Any) -> None:
    assert find_fault(fragment) == found
    env_id = np.arange(R) + 5  # of 8 in the run
    code = int(encode_fault(fragment, env_id, 8))
    assert (code == 0) == (found is None)
    if found is not None:
        t, row, kind = decode_fault(code, T, 8)
        assert (t, row - 5, kind) == found
