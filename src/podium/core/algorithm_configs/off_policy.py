"""What algorithms that learn from a replay buffer have in common."""

from dataclasses import dataclass

from podium.core.algorithm_configs.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class OffPolicyConfig(AlgorithmConfig):
    """Updates are made of steps drawn from the past."""

    HYPER = ("learning_rate", "gamma", "tau")

    fragment_length: int = 64
    """Steps of each environment between two rounds of updates (T)."""
    batch_size: int = 256
    """Steps drawn for each update; of a recurrent network whole sequences, so a multiple of fragment_length."""
    buffer_size: int = 1_000_000
    """Env steps that are kept; the oldest go first."""
    learning_starts: int = 1_000
    """Env steps, played at random, before the first update."""
    update_ratio: float = 1.0
    """Updates for each env step collected."""
    n_step: int = 1
    """Rewards in a target before it looks at a value; fewer where an episode or a fragment ends."""
    tau: float = 0.005
    """How far the target network moves towards the network at each update."""
    normalize_observations: bool = False
    """By mean and variance of what was put into the replay buffer; frozen in evaluation."""
    exploration_spread: float = 1.0
    """The last environment's exploration as a part of the first one's; between them it falls by equal factors."""
    priority_exponent: float = 0.0
    """How much likelier steps with a large error are drawn (alpha): 0 uniform, 1 proportional."""
    priority_correction: float = 0.4
    """How much of the bias by that is corrected by weights (beta)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("batch_size", 1 <= self.batch_size <= self.buffer_size, "from 1 to algorithm.buffer_size")
        self.require("buffer_size", self.buffer_size >= self.fragment_length, "at least algorithm.fragment_length")
        self.require(
            "learning_starts", 0 <= self.learning_starts <= self.buffer_size, "from 0 to algorithm.buffer_size"
        )
        self.require("update_ratio", 0 < self.update_ratio <= 1_000, "more than 0 and at most 1,000")
        self.require("n_step", 1 <= self.n_step <= self.fragment_length, "from 1 to algorithm.fragment_length")
        self.require("tau", 0 < self.tau <= 1, "more than 0 and at most 1")
        self.require("exploration_spread", 0 < self.exploration_spread <= 1, "more than 0 and at most 1")
        self.require("priority_exponent", 0 <= self.priority_exponent <= 1, "between 0 and 1")
        self.require("priority_correction", 0 <= self.priority_correction <= 1, "between 0 and 1")
