"""SAC that sees clipped rewards: a variation on an algorithm that learns from replay.

podium train clipped_sac:algorithm Pendulum-v1 --total-steps 20_000 --set env.num_envs=4 algorithm.fragment_length=8
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from podium.algorithms import sac
from podium.algorithms.algorithm import Algorithm, Drawn
from podium.core.algorithm_configs import SACConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import Tree


@dataclass(frozen=True)
class ClippedSACConfig(SACConfig):
    """SAC's settings, and one more."""

    most: float = 1.0
    """The largest reward, up or down, that an update sees."""


def algorithm(config: ClippedSACConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """SAC for one environment spec, all but what its updates see."""
    inner = sac.make(config, experiment, spec)

    def update(state: Tree, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rewards = jnp.clip(batch.rows.rewards, -config.most, config.most)  # [B, n_step]
        return inner.update(state, batch._replace(rows=batch.rows._replace(rewards=rewards)), key, axis)

    return inner._replace(update=update)
