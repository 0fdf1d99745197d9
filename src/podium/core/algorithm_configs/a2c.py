"""Fields of A2C."""

from dataclasses import dataclass
from typing import Literal

from podium.core.algorithm_configs.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class A2CConfig(AlgorithmConfig):
    """Advantage actor-critic (Mnih et al., 2016, without asynchrony): one gradient step for each fragment."""

    HYPER = ("learning_rate", "gamma", "gae_lambda", "entropy_coef", "value_coef", "max_grad_norm")

    name: str = "a2c"
    """Its registered name."""
    learning_rate: float = 7e-4
    """Step size."""
    fragment_length: int = 8
    """Steps of each environment between two updates (T)."""
    gae_lambda: float = 1.0
    """Between one-step (0) and Monte-Carlo (1) advantages."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    schedule: Literal["constant", "linear"] = "constant"
    """Learning rate over the run; linear falls to 0 at limits.total_steps."""
    normalize_advantages: bool = False
    """Subtract the mean of a fragment's advantages and divide by their standard deviation."""
    normalize_observations: bool = False
    """By running mean and variance; frozen in evaluation."""
    normalize_rewards: bool = False
    """By the running standard deviation of the discounted return."""
    squash: bool = False
    """Continuous actions through tanh to their bounds; else a Gaussian, clipped to them."""
    log_std: float = 0.0
    """Initial log standard deviation of continuous actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_finite("entropy_coef", "value_coef", "log_std")
        self.require("gae_lambda", 0 <= self.gae_lambda <= 1, "between 0 and 1")
        self.require("max_grad_norm", self.max_grad_norm > 0, "more than 0")
