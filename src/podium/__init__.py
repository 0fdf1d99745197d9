"""Podium: distributed reinforcement learning, from a laptop to a cluster with one description.

import podium
run = podium.train("ppo", "CartPole-v1", total_steps=100_000)
policy = podium.load(run)
action, memory = policy.predict(obs)
"""

from podium.api import Evaluation, Run, dry_run, evaluate, load, resume, train, train_seeds
from podium.core.callback import Callback
from podium.core.config import Experiment
from podium.core.errors import CheckpointError, ConfigError, EnvError, PodiumError, TrainingError

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "CheckpointError",
    "ConfigError",
    "EnvError",
    "Evaluation",
    "Experiment",
    "PodiumError",
    "Run",
    "TrainingError",
    "dry_run",
    "evaluate",
    "load",
    "resume",
    "train",
    "train_seeds",
]
