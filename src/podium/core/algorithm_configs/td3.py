"""Fields of TD3."""

from dataclasses import dataclass

from podium.core.algorithm_configs.ddpg import DDPGConfig


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Twin delayed DDPG (Fujimoto et al., 2018)."""

    HYPER = (*DDPGConfig.HYPER, "target_noise", "target_noise_clip")

    name: str = "td3"
    """Its registered name."""
    target_noise: float = 0.2
    """Standard deviation of the Gaussian added to the target's action, as a part of half its range."""
    target_noise_clip: float = 0.5
    """Largest such noise."""
    policy_delay: int = 2
    """Updates of the critics for each one of the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_finite("target_noise")
        self.require("target_noise", self.target_noise >= 0, "at least 0")
        self.require("target_noise_clip", self.target_noise_clip >= 0, "at least 0")
        self.require("policy_delay", self.policy_delay >= 1, "at least 1")
