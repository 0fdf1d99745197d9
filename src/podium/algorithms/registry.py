"""From an experiment's algorithm name to the algorithm: a built-in, or the user's by Python path."""

import importlib

from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import ALGORITHMS
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.specs import EnvSpec
from podium.core.user_frames import refusing


def make(experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """The algorithm of `experiment` for environments of `spec`.

    A user's own is a function `(config, experiment, spec) -> Algorithm`; the annotation of `config`,
    a subclass of AlgorithmConfig, says which fields `--set algorithm.…` takes.
    """
    name = experiment.algorithm.name
    if name in ALGORITHMS:
        return importlib.import_module(f"podium.algorithms.{name}").make(experiment.algorithm, experiment, spec)
    factory = load_path(name, "algorithm.name")
    with refusing(f"algorithm.name = {name!r}: called with (config, experiment, spec), it"):
        algorithm = factory(experiment.algorithm, experiment, spec)
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm.name = {name!r}: must return a podium.algorithms.algorithm.Algorithm,"
            f" not {type(algorithm).__name__}"
        )
    return algorithm
