"""IMPALA (Espeholt et al., 2018): an actor-critic whose actors may play older policies, since V-trace corrects for it.

All but the estimate of advantages is A2C's: a fragment is used for one gradient step, in which each advantage is
weighed by min(ρ̄, π/μ) of the learner's policy π and the actor's μ, whose log-probabilities came with the fragment. At
staleness 0 π is μ, and an update is A2C's.
"""

from podium.algorithms import a2c
from podium.algorithms.advantages import by_vtrace
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import IMPALAConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec


def make(config: IMPALAConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """IMPALA for one environment spec."""
    return a2c.make_with(by_vtrace, config, experiment, spec)
