"""The same work for SB3 and SBX, whose models take the same arguments: HalfCheetah-v5, one update for each step.

model = make(SAC, "sac")           # 8 environments x 8 steps, then 64 updates of 256 rows
fill(model)                        # past learning_starts: nothing is trained before
model.learn(10**9, callback=Marks(window), reset_num_timesteps=False)
"""

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from window import Window

WORKLOADS = ["sac", "td3"]
NUM_ENVS, STEPS = 8, 8
STARTS = 1_000


def make(model: Any, workload: str, **options: Any) -> Any:
    """A model with networks of 256x256, in the shape of rounds that Podium's presets have: it suits all three."""
    options.setdefault("policy_kwargs", {"net_arch": [256, 256]})
    if workload == "td3":
        options["policy_delay"] = 2
    return model(
        "MlpPolicy",
        make_vec_env("HalfCheetah-v5", n_envs=NUM_ENVS, seed=0, vec_env_cls=DummyVecEnv),
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=STARTS,
        batch_size=256,
        tau=0.005,
        gamma=0.99,
        train_freq=(STEPS, "step"),
        gradient_steps=NUM_ENVS * STEPS,
        seed=0,
        **options,
    )


def fill(model: Any) -> None:
    """Play until there is enough to train on, and train a little: what is compiled is compiled then."""
    model.learn(STARTS + 2 * NUM_ENVS * STEPS)


class Marks(BaseCallback):
    """Marks the start of each round: by then all steps that `num_timesteps` counts have had their updates."""

    def __init__(self, window: Window):
        super().__init__()
        self.window = window

    def _on_rollout_start(self) -> None:
        self.window.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.window.closed
