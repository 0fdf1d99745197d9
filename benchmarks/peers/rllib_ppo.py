"""RLlib's PPO (new API stack, torch) on HalfCheetah-v5: prints how many environment steps it trains on in a second."""

import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from window import Window, end_on_sigterm, parse, report

# The learner lives in this process. Beside other work on two cores, one thread trained nine times as fast as two (one
# trial); not compared on an idle machine.
TORCH_THREADS = 1


def build() -> Algorithm:
    config = (
        PPOConfig()
        .environment("HalfCheetah-v5")
        .framework("torch")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=8, rollout_fragment_length=128)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=2048,
            minibatch_size=256,
            num_epochs=10,
            gamma=0.99,
            lambda_=0.95,
            lr=3e-4,
            clip_param=0.2,
            use_kl_loss=False,
            entropy_coeff=0.0,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False, free_log_std=True
            )
        )
        .debugging(seed=0, log_level="ERROR")
    )
    return config.build_algo()


def main() -> None:
    arguments = parse(["halfcheetah"])
    torch.set_num_threads(TORCH_THREADS)
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    try:
        end_on_sigterm()
        algorithm = build()
        window = Window(warm_up=2, seconds=arguments.seconds)
        while not window.closed:
            result = algorithm.train()
            window.mark(int(result["env_runners"]["num_env_steps_sampled_lifetime"]))
        algorithm.stop()
    finally:
        # Ends every process that `ray.init` started, and no other cluster's.
        ray.shutdown()
    note = "2 env runners x 8 envs, new API stack, local learner, 1 torch thread"
    report("rllib", ray.__version__, arguments.workload, window, note)


if __name__ == "__main__":
    main()
