"""The fields of each algorithm: one file each, jax-free, so that --help is fast."""

from podium.core.algorithm_configs.a2c import A2CConfig
from podium.core.algorithm_configs.algorithm import STEP_SHARE, AlgorithmConfig
from podium.core.algorithm_configs.appo import APPOConfig
from podium.core.algorithm_configs.ddpg import DDPGConfig
from podium.core.algorithm_configs.dqn import DQNConfig
from podium.core.algorithm_configs.es import ESConfig
from podium.core.algorithm_configs.impala import IMPALAConfig
from podium.core.algorithm_configs.off_policy import OffPolicyConfig
from podium.core.algorithm_configs.ppo import PPOConfig
from podium.core.algorithm_configs.sac import SACConfig
from podium.core.algorithm_configs.td3 import TD3Config

__all__ = [
    "ALGORITHMS",
    "STEP_SHARE",
    "A2CConfig",
    "APPOConfig",
    "AlgorithmConfig",
    "DDPGConfig",
    "DQNConfig",
    "ESConfig",
    "IMPALAConfig",
    "OffPolicyConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
]

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "appo": APPOConfig,
    "ddpg": DDPGConfig,
    "dqn": DQNConfig,
    "es": ESConfig,
    "impala": IMPALAConfig,
    "ppo": PPOConfig,
    "sac": SACConfig,
    "td3": TD3Config,
}
"""Built-in algorithms by name. One of a user's own is named by its Python path."""
