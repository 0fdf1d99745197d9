"""Fields of ES."""

from dataclasses import dataclass

from podium.core.algorithm_configs.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class ESConfig(AlgorithmConfig):
    """Evolution strategies (Salimans et al., 2017): antithetic pairs, ranked returns, Adam."""

    HYPER = ("learning_rate", "gamma", "sigma", "weight_decay", "action_noise")

    name: str = "es"
    """Its registered name."""
    learning_rate: float = 1e-2
    """Step size of Adam."""
    population: int = 256
    """Individuals of each update: half of them, and their mirror images."""
    sigma: float = 0.02
    """Standard deviation of the individuals' parameters around the mean."""
    weight_decay: float = 0.005
    """Part of the parameters taken off at each update, for each unit of learning rate."""
    action_noise: float = 0.01
    """Standard deviation of the Gaussian added to continuous actions."""
    episode_limit: int = 1_000
    """Steps at most of an individual's episode."""
    normalize_observations: bool = False
    """By the actors' own statistics."""
    noise_table: int = 25_000_000
    """Random numbers that individuals' noise is an index into: made of the seed, one table on each host."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_finite("sigma", "weight_decay", "action_noise")
        self.require("population", self.population >= 2 and self.population % 2 == 0, "even and at least 2")
        self.require("sigma", self.sigma > 0, "more than 0")
        self.require("weight_decay", self.weight_decay >= 0, "at least 0")
        self.require("action_noise", self.action_noise >= 0, "at least 0")
        self.require("episode_limit", self.episode_limit >= 1, "at least 1")
        self.require("noise_table", self.noise_table >= 1_000, "at least 1,000")
