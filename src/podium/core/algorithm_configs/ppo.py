"""Fields of PPO."""

from dataclasses import dataclass
from typing import Literal

from podium.core.algorithm_configs.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """Proximal policy optimisation (Schulman et al., 2017)."""

    HYPER = ("learning_rate", "gamma", "gae_lambda", "clip", "entropy_coef", "value_coef", "max_grad_norm")

    name: str = "ppo"
    """Its registered name."""
    num_epochs: int = 10
    """Passes over each fragment."""
    minibatch_size: int = 256
    """Steps in a gradient step; for a recurrent network, whole sequences that add up to it."""
    gae_lambda: float = 0.95
    """Between one-step (0) and Monte-Carlo (1) advantages."""
    objective: Literal["clip", "adaptive_kl"] = "clip"
    """Clip the probability ratio, or penalise the KL divergence with a coefficient that adapts."""
    clip: float = 0.2
    """Range of the probability ratio around 1."""
    value_clip: float | None = None
    """Range of a value's change in one update; None: not clipped."""
    kl_target: float = 0.01
    """What adaptive_kl steers the KL divergence towards."""
    kl_stop: float | None = None
    """Skip the rest of an update once the KL divergence is beyond it; None: never."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    grad_norm_of: Literal["all", "each"] = "all"
    """Of which gradients: all together, or policy's and value's each by itself. each needs separate networks (vectors,
    no memory), and lets two CPU cores train one network each where minibatches are small (fused)."""
    schedule: Literal["constant", "linear"] = "constant"
    """Learning rate over the run; linear falls to 0 at limits.total_steps."""
    normalize_advantages: bool = True
    """Subtract mean and divide by standard deviation in each minibatch."""
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
        self.require_finite("entropy_coef", "value_coef", "log_std", "kl_target")
        self.require("num_epochs", self.num_epochs >= 1, "at least 1")
        self.require("minibatch_size", self.minibatch_size >= 1, "at least 1")
        self.require("gae_lambda", 0 <= self.gae_lambda <= 1, "between 0 and 1")
        self.require("clip", self.clip > 0, "more than 0")
        self.require("value_clip", self.value_clip is None or self.value_clip > 0, "more than 0")
        self.require("kl_target", self.kl_target > 0, "more than 0")
        self.require("kl_stop", self.kl_stop is None or self.kl_stop > 0, "more than 0")
        self.require("max_grad_norm", self.max_grad_norm > 0, "more than 0")
