"""What other processes find by its name: they are given an experiment's text, and no object."""

import sys
from collections.abc import Callable

from podium.core.config import Experiment
from podium.envs.registry import ResolvedEnv


def is_importable(experiment: Experiment, factory: Callable) -> bool:
    """Whether the environment's name leads to this factory: that of a lambda, or in a notebook, does not."""
    module, _, name = experiment.env.id.partition(":")
    return module != "__main__" and getattr(sys.modules.get(module), name, None) is factory


def names_of_this_program(experiment: Experiment) -> list[str]:
    """Algorithm, network, wrappers and schedules that only the program that runs now has, as `field = name`."""
    named = {
        "algorithm": [experiment.algorithm.name],
        "network.factory": [experiment.network.factory],
        "env.wrappers": experiment.env.wrappers,
        "algorithm.schedules": experiment.algorithm.schedules.values(),
    }
    pairs = ((field, name) for field, names in named.items() for name in names)
    return [f"{field} = {name}" for field, name in pairs if isinstance(name, str) and name.startswith("__main__")]


def are_known_everywhere(experiment: Experiment, env: ResolvedEnv) -> bool:
    """Whether all names lead somewhere in a fresh process, for sure: not to what a script defines, or registers with
    Gymnasium.
    """
    names = experiment.env.id, *experiment.env.wrappers, experiment.algorithm.name, experiment.network.factory or ""
    if any(name.startswith("__main__") for name in names):
        return False
    return env.library != "gymnasium" or bool(experiment.env.packages) or _is_registered_everywhere(experiment.env.id)


def _is_registered_everywhere(env_id: str) -> bool:
    import gymnasium

    module, _, name = env_id.removeprefix("gymnasium:").rpartition(":")
    return bool(module) or str(gymnasium.registry[name].entry_point).startswith(("gymnasium.", "ale_py."))
