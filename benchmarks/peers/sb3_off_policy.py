"""Stable-Baselines3's SAC or TD3 on HalfCheetah-v5: prints how many environment steps it trains on in a second."""

import time
from typing import Any

import stable_baselines3
import torch
from off_policy_work import WORKLOADS, Marks, fill, make
from stable_baselines3 import SAC, TD3
from window import Window, parse, report


def choose_threads(model: Any) -> int:
    """As many torch threads as train fastest here: it depends on the machine and on what else runs."""
    seconds = {}
    for threads in range(1, torch.get_num_threads() + 1):
        torch.set_num_threads(threads)
        model.train(gradient_steps=5, batch_size=256)
        began = time.perf_counter()
        model.train(gradient_steps=30, batch_size=256)
        seconds[threads] = time.perf_counter() - began
    return min(seconds, key=lambda threads: seconds[threads])


def main() -> None:
    arguments = parse(WORKLOADS)
    options = {"policy_kwargs": {"net_arch": [256, 256], "activation_fn": torch.nn.ReLU}, "device": "cpu"}
    model = make({"sac": SAC, "td3": TD3}[arguments.workload], arguments.workload, **options)
    fill(model)
    threads = choose_threads(model)
    torch.set_num_threads(threads)
    window = Window(warm_up=2, seconds=arguments.seconds)
    model.learn(10**9, callback=Marks(window), reset_num_timesteps=False)
    report("sb3", stable_baselines3.__version__, arguments.workload, window, f"DummyVecEnv, {threads} torch thread(s)")


if __name__ == "__main__":
    main()
