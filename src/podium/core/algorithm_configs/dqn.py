"""Fields of DQN."""

from dataclasses import dataclass
from typing import Literal

from podium.core.algorithm_configs.off_policy import OffPolicyConfig


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning (Mnih et al., 2015): double, dueling, n-step, prioritised and recurrent as wished."""

    HYPER = ("learning_rate", "gamma", "tau", "max_grad_norm")

    name: str = "dqn"
    """Its registered name."""
    double: bool = True
    """Choose the next action by the network, and value it by the target network."""
    dueling: bool = True
    """A state's value and the actions' advantages as two heads, with a last hidden layer each."""
    epsilon_start: float = 1.0
    """Share of random actions when learning starts."""
    epsilon_end: float = 0.05
    """Share of random actions at the end of their decay."""
    epsilon_decay: float = 0.2
    """Part of limits.total_steps in which it falls from the one to the other, after learning_starts."""
    burn_in: int = 0
    """First steps of a sequence that only fill the memory of a recurrent network, at half of its draws."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""
    schedule: Literal["constant", "linear"] = "constant"
    """Learning rate over the run; linear falls to 0 at limits.total_steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epsilon_start", "epsilon_end", "epsilon_decay"):
            self.require(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        self.require("burn_in", 0 <= self.burn_in < self.fragment_length, "from 0 to algorithm.fragment_length - 1")
        self.require("max_grad_norm", self.max_grad_norm > 0, "more than 0")
