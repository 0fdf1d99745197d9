"""Sample Factory's asynchronous PPO on EnvPool's Pong: prints how many steps it trains on in a second.

One pass over each fragment, as IMPALA makes; its `convnet_atari` is the Nature CNN with a dense layer of 512. Without
V-trace, with which Sample Factory 2.1.1 ends at its first summary (no attribute 'advantages'); the costs are the same.
"""

import multiprocessing
import tempfile
from importlib.metadata import version
from typing import Any

import envpool
import gymnasium
import numpy as np
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory.utils.utils import log
from sample_factory_ppo import Marks
from window import Window, parse, report

WORKERS, ENVS, ROLLOUT = 2, 16, 16
SETTINGS = {
    "env": "Pong-v5",
    "env_frameskip": 1,  # EnvPool skips; counted are the steps of the agent, as Podium does
    "device": "cpu",
    "seed": 0,
    "async_rl": True,
    "batched_sampling": True,
    "num_workers": WORKERS,
    "num_envs_per_worker": 1,
    "worker_num_splits": 1,
    "rollout": ROLLOUT,
    "recurrence": 1,
    "batch_size": WORKERS * ENVS * ROLLOUT,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "with_vtrace": False,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "learning_rate": 6e-4,
    "value_loss_coeff": 0.5,
    "exploration_loss_coeff": 0.01,
    "max_grad_norm": 0.5,
    "use_rnn": False,
    "encoder_conv_architecture": "convnet_atari",
    "nonlinearity": "relu",
    "obs_scale": 255.0,
    "normalize_input": False,
    "normalize_returns": False,
    "save_every_sec": 3600,
    "save_best_every_sec": 3600,
    "log_to_file": False,
    "experiment": "bench",
}


class Pool(gymnasium.Env):
    """A pool of EnvPool's as Sample Factory takes batches: it resets ended environments within the step."""

    def __init__(self, name: str, env_id: int) -> None:
        self.num_agents = ENVS
        self._pool: Any = envpool.make(
            name, "gymnasium", num_envs=ENVS, num_threads=1, seed=env_id, episodic_life=True, reward_clip=True
        )
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space

    def reset(self, **_: Any) -> tuple[np.ndarray, dict]:
        return self._pool.reset()[0], {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        obs, reward, terminated, truncated, _ = self._pool.step(np.asarray(actions).reshape(ENVS))
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            obs[ended] = self._pool.reset(ended)[0]
        return obs, reward, terminated, truncated, {}

    def close(self) -> None:
        self._pool = None  # its threads end with it; its own close needs a newer Gymnasium


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    return Pool(name, 0 if env_config is None else env_config.env_id)


def train(window: Window) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--{name}={value}" for name, value in SETTINGS.items()]
        arguments += [f"--train_dir={folder}", "--encoder_conv_mlp_layers", "512"]
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
    arguments = parse(["pong"])
    window = Window(warm_up=4, seconds=arguments.seconds)
    train(window)
    note = f"EnvPool, asynchronous, {WORKERS} workers x {ENVS} envs, one pass"
    report("sample_factory", version("sample-factory"), arguments.workload, window, note)


log.setLevel("ERROR")
register_env("Pong-v5", make_env)

if __name__ == "__main__":
    main()
