"""Sample Factory's asynchronous PPO on HalfCheetah-v4: prints how many environment steps it trains on in a second.

v4, because Sample Factory 2.1 needs Gymnasium < 1, which has no v5: the same model, frame skip, observation and reward.
"""

import ctypes
import multiprocessing
import signal
import sys
import tempfile
from importlib.metadata import version

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory.utils.utils import log
from window import Window, parse, report

# Sample Factory itself gives the learner, the policy worker and the env workers one torch thread each.
SETTINGS = {
    "env": "HalfCheetah-v4",
    "env_frameskip": 1,
    "device": "cpu",
    "seed": 0,
    "async_rl": True,
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "rollout": 128,
    "batch_size": 256,
    "num_batches_per_epoch": 8,
    "num_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 3e-4,
    "ppo_clip_ratio": 0.2,
    "value_loss_coeff": 0.5,
    "exploration_loss_coeff": 0.0,
    "max_grad_norm": 0.5,
    "use_rnn": False,
    "nonlinearity": "tanh",
    "actor_critic_share_weights": False,
    "adaptive_stddev": False,
    "normalize_input": False,
    "normalize_returns": False,
    "value_bootstrap": True,
    "save_every_sec": 3600,
    "save_best_every_sec": 3600,
    "log_to_file": False,
    "experiment": "bench",
}


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent is gone: also after a SIGKILL, which no code can catch."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def make_env(name: str, cfg, env_config, render_mode=None) -> gymnasium.Env:
    return gymnasium.make(name, render_mode=render_mode)


class Marks(AlgoObserver):
    """Marks each training iteration.

    The learner's count of steps comes one message later, so both ends of the window see it one iteration late.
    """

    def __init__(self, window: Window):
        self.window = window

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self.window.mark(runner.env_steps[0])
        if self.window.closed:
            # The runner compares with this right after the observers, and ends its processes.
            runner.cfg.train_for_env_steps = 0


def train(window: Window) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--{name}={value}" for name, value in SETTINGS.items()]
        arguments += [f"--train_dir={folder}", "--encoder_mlp_layers", "64", "64"]
        parser, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        runner.register_observer(Marks(window))
        try:
            if runner.init() == ExperimentStatus.SUCCESS:
                runner.run()
        finally:
            for process in multiprocessing.active_children():
                process.kill()
                process.join(5)


def main() -> None:
    arguments = parse(["halfcheetah"])
    # The first batches are waited for by a learner that has nothing to do: let the pipeline fill.
    window = Window(warm_up=4, seconds=arguments.seconds)
    train(window)
    note = "HalfCheetah-v4, asynchronous, 2 workers x 8 envs, minibatches not shuffled (its default)"
    report("sample_factory", version("sample-factory"), arguments.workload, window, note)


# Here, because its workers import this file too: hundreds of lines about high losses would cost it time.
log.setLevel("ERROR")
register_env("HalfCheetah-v4", make_env)

if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    die_with_parent()
