"""Fields of DDPG."""

from dataclasses import dataclass

from podium.core.algorithm_configs.off_policy import OffPolicyConfig


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient (Lillicrap et al., 2016)."""

    HYPER = (*OffPolicyConfig.HYPER, "noise")

    name: str = "ddpg"
    """Its registered name."""
    fragment_length: int = 8
    """Steps of each environment between two rounds of updates (T)."""
    noise: float = 0.1
    """Standard deviation of the Gaussian added to actions, as a part of half their range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_finite("noise")
        self.require("noise", self.noise >= 0, "at least 0")
