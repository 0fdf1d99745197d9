"""What the configurations of all algorithms have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.core.schedules import RIGHT, is_schedule
from podium.core.section import Section

STEP_SHARE = "step_share"
"""The traced number that is 1 / limits.total_steps: the part of the run that one step is."""


@dataclass(frozen=True)
class AlgorithmConfig(Section):
    """What every algorithm has. One of your own extends it: `class MyConfig(AlgorithmConfig)`."""

    SECTION = "algorithm"
    HYPER: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma")
    """Fields that are traced, so that changing them compiles nothing."""

    name: str = ""
    """Its registered name or Python path."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount."""
    fragment_length: int = 128
    """Steps of each environment between two updates (T)."""
    schedules: Mapping[str, Any] = field(default_factory=dict)
    """Factors of settings over the run, such as {entropy_coef = "linear"}: linear or cosine (to 0 at
    limits.total_steps), points [[0, 1], [0.5, 0.1]], or the Python path of a function of the part that is done."""

    def __post_init__(self) -> None:
        self.require_finite("learning_rate")
        self.require("learning_rate", self.learning_rate >= 0, "at least 0")
        self.require("gamma", 0 <= self.gamma <= 1, "between 0 and 1")
        self.require("fragment_length", self.fragment_length >= 1, "at least 1")
        for name, how in self.schedules.items():
            self._check_schedule(name, how)

    def _check_schedule(self, name: str, how: Any) -> None:
        if name not in self.HYPER:
            near = suggest(name, self.HYPER) or f"; these have: {', '.join(self.HYPER)}"
            raise ConfigError(f"algorithm.schedules.{name}: has no schedule{near}")
        if not is_schedule(how):
            raise ConfigError(f"algorithm.schedules.{name} = {how!r}: must be {RIGHT}")
        if name == "learning_rate" and getattr(self, "schedule", "constant") != "constant":
            raise ConfigError("algorithm.schedules.learning_rate: goes with algorithm.schedule=constant")

    def hyper(self) -> dict[str, float]:
        """The traced hyper-parameters by name. `Experiment.hyper` adds what schedules need."""
        return {name: float(getattr(self, name)) for name in self.HYPER}

    def is_hyper(self, node: object) -> bool:
        """Whether this part of a training state is the dict that `init` was given: it must be somewhere in it."""
        return isinstance(node, dict) and set(node) - {STEP_SHARE} == set(self.HYPER)
