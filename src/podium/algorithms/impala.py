"""IMPALA (Espeholt et al., 2018): an actor-critic whose actors may play older policies, since V-trace corrects for it.

All but the estimate of advantages is A2C's: in a gradient step each advantage is weighed by min(ρ̄, π/μ) of the
learner's policy π and the actor's μ, whose log-probabilities came with the fragment. At staleness 0 π is μ, and an
update is A2C's. What corrects for older actors also corrects for the steps just made, so a fragment may be gone over
more than once (`num_epochs`): with V-trace's advantages and targets of the update's start, each weighed by π/μ of now.
"""

from podium.algorithms import a2c
from podium.algorithms.advantages import by_vtrace
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import IMPALAConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec


def make(config: IMPALAConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """IMPALA for one environment spec."""
    rows = experiment.rows_per_update(spec)
    size = config.minibatch_size or rows
    if rows % size:
        raise ConfigError(f"algorithm.minibatch_size = {size}: must divide fragment_length x num_envs = {rows}")
    passes = a2c.Passes(config.num_epochs, rows // size)
    return a2c.make_with(by_vtrace, config, experiment, spec, passes)
