"""What of an experiment may still change when its run goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.fields import list_fields
from podium.core.settings import build_values, read_overrides

CHANGEABLE = ("limits", "evaluation", "checkpoint")
"""Sections that decide when a run ends and what is kept of it, not what it computes."""
WHY_NOT = {
    "algorithm": "it is part of the compiled update",
    "env": "the run has learned from these environments",
    "network": "the parameters have its shape",
    "topology": "it was settled when the run started",
    "": "the run's random numbers follow from it",
}


def change_experiment(experiment: Experiment, overrides: Mapping[str, Any] | Sequence[str]) -> Experiment:
    """The experiment of a run with other settings, of those that may change while it goes on: limits, evaluation,
    checkpoint, and the hyper-parameters of its algorithm that are traced (`HYPER`).

    change_experiment(experiment, ["algorithm.learning_rate=1e-4", "limits.wall_s=none"])
    """
    kind = type(experiment.algorithm)
    fields = list_fields(kind)
    before = {path: _value(experiment, path) for path in fields}
    changed, values = build_values(before, fields, read_overrides(overrides), experiment.algorithm.name)
    for path in fields:
        section, _, name = path.rpartition(".")
        may = section in CHANGEABLE or (section == "algorithm" and name in kind.HYPER)
        if not may and values[path] != before[path]:
            raise ConfigError(
                f"{path} = {values[path]}: cannot change when a run goes on, because {WHY_NOT[section]}; these may: "
                f"{', '.join(f'{section}.*' for section in CHANGEABLE)}, "
                f"{', '.join(f'algorithm.{name}' for name in kind.HYPER)}"
            )
    return changed


def _value(experiment: Experiment, path: str) -> Any:
    section, _, name = path.rpartition(".")
    return getattr(getattr(experiment, section) if section else experiment, name)
