"""What individuals saw, in two rows: without what a simulator that lost its numbers gave."""

import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms.algorithm import Seen
from podium.core.specs import Array
from podium.workers.observation_moments import HostTally, MomentTally

ROWS = np.array([[1.0, 5.0], [3.0, 9.0], [np.nan, 7.0], [np.inf, 7.0], [1e20, 7.0], [100.0, 100.0]], np.float32)
PLAYS = np.array([True, True, True, True, True, False])


def on_host() -> Seen:
    tally, seen = HostTally(Array((2,))), Seen(np.zeros(2, np.float32), np.zeros((2, 2), np.float32))
    tally.add(ROWS, PLAYS)
    tally.write(seen)
    return seen


def in_xla() -> Seen:
    return MomentTally.start(jnp.asarray(ROWS[:2])).add(jnp.asarray(ROWS), jnp.asarray(PLAYS)).seen(jnp.asarray(ROWS))


def in_xla_from_bad_rows() -> Seen:
    rows = jnp.asarray(ROWS)
    return MomentTally.start(rows).add(rows, jnp.asarray(PLAYS)).seen(rows)


@pytest.mark.parametrize("tally", [on_host, in_xla, in_xla_from_bad_rows])
def test_rows_that_are_not_finite_or_too_large_to_square_or_not_played_are_left_out(tally) -> None:
    seen = tally()
    assert seen.weight.sum() == 2
    np.testing.assert_allclose(np.asarray(seen.obs), [[3.0, 9.0], [1.0, 5.0]], rtol=1e-6)  # mean ± deviation
