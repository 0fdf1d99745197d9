"""APPO (Petrenko et al., 2020): PPO's clipped surrogate, with V-trace's advantages and value targets.

All but the estimate of advantages is PPO's. The surrogate's own ratio π/μ, clipped around 1, corrects for the action
that was taken; V-trace corrects for those that followed it, and advantages are not weighed by ρ a second time. At
staleness 0 π is μ at the update's start, and an update is PPO's.
"""

from podium.algorithms import ppo
from podium.algorithms.advantages import by_vtrace
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import APPOConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec


def make(config: APPOConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """APPO for one environment spec."""
    return ppo.make_with(by_vtrace, config, experiment, spec)
