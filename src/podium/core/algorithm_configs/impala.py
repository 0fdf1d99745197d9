"""Fields of IMPALA."""

from dataclasses import dataclass

from podium.core.algorithm_configs.a2c import A2CConfig


@dataclass(frozen=True)
class IMPALAConfig(A2CConfig):
    """Importance-weighted actor-learner (Espeholt et al., 2018): V-trace corrects for old policies."""

    HYPER = (*A2CConfig.HYPER, "clip_rho", "clip_c")

    name: str = "impala"
    """Its registered name."""
    fragment_length: int = 32
    """Steps of each environment between two updates (T)."""
    num_epochs: int = 1
    """Passes over each fragment; importance weights correct for what the earlier ones changed."""
    minibatch_size: int | None = None
    """Steps in a gradient step; for a recurrent network, whole sequences that add up to it. None: all of them."""
    clip_rho: float = 1.0
    """Largest importance weight of a temporal difference: where values settle."""
    clip_c: float = 1.0
    """Largest importance weight of a trace: how fast they get there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_epochs", self.num_epochs >= 1, "at least 1")
        self.require("minibatch_size", self.minibatch_size is None or self.minibatch_size >= 1, "at least 1")
        self.require("clip_rho", self.clip_rho > 0, "more than 0")
        self.require("clip_c", 0 < self.clip_c <= self.clip_rho, "more than 0 and at most algorithm.clip_rho")
