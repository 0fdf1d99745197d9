"""Fields of SAC."""

from dataclasses import dataclass

from podium.core.algorithm_configs.off_policy import OffPolicyConfig


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic (Haarnoja et al., 2018), with a temperature that finds itself."""

    name: str = "sac"
    """Its registered name."""
    fragment_length: int = 8
    """Steps of each environment between two rounds of updates (T)."""
    temperature: float | None = None
    """Weight of the entropy; None: learned, so that the entropy stays near target_entropy."""
    target_entropy: float | None = None
    """None: minus the number of action dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_finite("temperature", "target_entropy")
        self.require("temperature", self.temperature is None or self.temperature >= 0, "at least 0")
