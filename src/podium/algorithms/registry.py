"""From an experiment's algorithm name to the algorithm: a built-in, or the user's by Python path."""

import importlib
from collections.abc import Callable
from typing import Any

from podium.algorithms import schedules
from podium.algorithms.algorithm import Algorithm
from podium.algorithms.normalizing import normalize_observations
from podium.core.algorithm_configs import ALGORITHMS, OffPolicyConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.specs import EnvSpec
from podium.core.user_frames import refusing


def make(experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """The algorithm of `experiment` for environments of `spec`, with its schedules.

    A user's own is a function `(config, experiment, spec) -> Algorithm`; the annotation of `config`,
    a subclass of AlgorithmConfig, says which fields `--set algorithm.…` takes.
    """
    config = experiment.algorithm
    if config.name in ALGORITHMS:
        algorithm = importlib.import_module(f"podium.algorithms.{config.name}").make(config, experiment, spec)
    else:
        algorithm = _make_own(experiment, spec, load_path(config.name, "algorithm.name"))
    if isinstance(config, OffPolicyConfig) and config.normalize_observations:
        algorithm = normalize_observations(algorithm)
    return schedules.apply(algorithm, experiment)


def _make_own(experiment: Experiment, spec: EnvSpec, factory: Callable[..., Any]) -> Algorithm:
    name = experiment.algorithm.name
    with refusing(f"algorithm.name = {name!r}: called with (config, experiment, spec), it"):
        algorithm = factory(experiment.algorithm, experiment, spec)
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm.name = {name!r}: must return a podium.algorithms.algorithm.Algorithm,"
            f" not {type(algorithm).__name__}"
        )
    return algorithm
