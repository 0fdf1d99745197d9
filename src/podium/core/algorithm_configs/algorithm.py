"""What the configurations of all algorithms have in common."""

from dataclasses import dataclass
from typing import ClassVar

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

    def __post_init__(self) -> None:
        self.require_finite("learning_rate")
        self.require("learning_rate", self.learning_rate >= 0, "at least 0")
        self.require("gamma", 0 <= self.gamma <= 1, "between 0 and 1")
        self.require("fragment_length", self.fragment_length >= 1, "at least 1")

    def hyper(self) -> dict[str, float]:
        """The traced hyper-parameters by name. `Experiment.hyper` adds what schedules need."""
        return {name: float(getattr(self, name)) for name in self.HYPER}

    def is_hyper(self, node: object) -> bool:
        """Whether this part of a training state is the dict that `init` was given: it must be somewhere in it."""
        return isinstance(node, dict) and set(node) - {STEP_SHARE} == set(self.HYPER)
