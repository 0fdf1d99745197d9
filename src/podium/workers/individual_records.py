"""What actors send of individuals that have played: a few bytes each, in batches, with what they observed."""

from typing import Any, NamedTuple

import jax
import numpy as np

from podium.algorithms.algorithm import Individuals, Seen
from podium.core.specs import EnvSpec
from podium.workers.observation_moments import seen_shapes
from podium.workers.schedule import Schedule

BATCHES = 4
"""In how many parts a slot sends its share of a population, where nobody waits for anybody: the fewer, the longer the
first ones of a batch wait for the last."""


class IndividualRecords(NamedTuple):
    """n individuals: 17 bytes each. Their parameters are those of `version`, and noise that an index tells."""

    index: Any  # int32[n]
    sign: Any  # int8[n]
    returns: Any  # float32[n]
    lengths: Any  # int32[n]: steps of the episode
    version: Any  # int32[n]: update number of the parameters that noise was added to
    seen: Seen | None  # by all of them together


def record_shapes(individuals: Individuals, spec: EnvSpec, slots: int, schedule: Schedule) -> IndividualRecords:
    """Shapes of a batch."""
    n = max(1, individuals.population // (slots if schedule.in_turns else BATCHES * slots))

    def column(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((n,), np.dtype(dtype))

    return IndividualRecords(
        index=column(np.int32),
        sign=column(np.int8),
        returns=column(np.float32),
        lengths=column(np.int32),
        version=column(np.int32),
        seen=seen_shapes(spec.observation) if individuals.observes else None,
    )
