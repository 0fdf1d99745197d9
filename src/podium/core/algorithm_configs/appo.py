"""Fields of APPO."""

from dataclasses import dataclass

from podium.core.algorithm_configs.ppo import PPOConfig


@dataclass(frozen=True)
class APPOConfig(PPOConfig):
    """PPO whose advantages and value targets V-trace corrects for old policies (Petrenko et al., 2020)."""

    HYPER = (*PPOConfig.HYPER, "clip_rho", "clip_c")

    name: str = "appo"
    """Its registered name."""
    fragment_length: int = 32
    """Steps of each environment between two updates (T)."""
    num_epochs: int = 1
    """Passes over each fragment."""
    clip_rho: float = 1.0
    """Largest importance weight of a temporal difference: where values settle."""
    clip_c: float = 1.0
    """Largest importance weight of a trace: how fast they get there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("clip_rho", self.clip_rho > 0, "more than 0")
        self.require("clip_c", 0 < self.clip_c <= self.clip_rho, "more than 0 and at most algorithm.clip_rho")
