"""Stable-Baselines3's PPO on HalfCheetah-v5: prints how many environment steps it trains on in a second."""

import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from window import Window, parse, report

# Beside other work on two cores, one thread trained 15 to 30 times as fast as two; not compared on an idle machine.
TORCH_THREADS = 1


class Marks(BaseCallback):
    """Marks the start of each rollout: by then all that `num_timesteps` counts has been trained on."""

    def __init__(self, window: Window):
        super().__init__()
        self.window = window

    def _on_rollout_start(self) -> None:
        self.window.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.window.closed


def main() -> None:
    arguments = parse(["halfcheetah"])
    torch.set_num_threads(TORCH_THREADS)
    model = PPO(
        "MlpPolicy",  # two 64x64 tanh networks, one for the policy and one for the value
        make_vec_env("HalfCheetah-v5", n_envs=16, seed=0, vec_env_cls=DummyVecEnv),
        n_steps=128,
        batch_size=256,
        n_epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        learning_rate=3e-4,
        clip_range=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
        seed=0,
        device="cpu",
    )
    # The first mark is the start of training, at step 0.
    window = Window(warm_up=2, seconds=arguments.seconds)
    model.learn(total_timesteps=10**9, callback=Marks(window))
    report("sb3", stable_baselines3.__version__, arguments.workload, window, "DummyVecEnv, 1 torch thread")


if __name__ == "__main__":
    main()
