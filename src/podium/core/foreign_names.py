"""What other libraries call Podium's fields, and what to say to somebody who types a name that is not there."""

import difflib
from collections.abc import Collection

from podium.core.imports import suggest

FOREIGN_NAMES: dict[str, str] = {
    # Stable-Baselines3
    "n_steps": "algorithm.fragment_length",
    "batch_size": "algorithm.minibatch_size",
    "n_epochs": "algorithm.num_epochs",
    "ent_coef": "algorithm.entropy_coef",
    "vf_coef": "algorithm.value_coef",
    "clip_range": "algorithm.clip",
    "clip_range_vf": "algorithm.value_clip",
    "target_kl": "algorithm.kl_stop",
    "n_envs": "env.num_envs",
    "n_timesteps": "limits.total_steps",
    "total_timesteps": "limits.total_steps",
    "normalize_advantage": "algorithm.normalize_advantages",
    "norm_obs": "algorithm.normalize_observations",
    "norm_reward": "algorithm.normalize_rewards",
    "log_std_init": "algorithm.log_std",
    "net_arch": "network.hidden",
    "activation_fn": "network.activation",
    "policy_kwargs": "network.hidden (and network.activation, network.memory)",
    "env_kwargs": "env.kwargs",
    "env_id": "env.id",
    "env_wrapper": "env.wrappers",
    # CleanRL
    "num_steps": "algorithm.fragment_length",
    "update_epochs": "algorithm.num_epochs",
    "num_minibatches": "algorithm.minibatch_size (steps in a minibatch, not how many minibatches)",
    "anneal_lr": "algorithm.schedule (linear or constant)",
    "norm_adv": "algorithm.normalize_advantages",
    "clip_coef": "algorithm.clip",
    "clip_vloss": "algorithm.value_clip",
    # RLlib
    "train_batch_size": "algorithm.fragment_length (times env.num_envs, the steps of one update)",
    "train_batch_size_per_learner": "algorithm.fragment_length (times env.num_envs, the steps of one update)",
    "rollout_fragment_length": "algorithm.fragment_length",
    "sgd_minibatch_size": "algorithm.minibatch_size",
    "num_sgd_iter": "algorithm.num_epochs",
    "lambda": "algorithm.gae_lambda",
    "lambda_": "algorithm.gae_lambda",
    "clip_param": "algorithm.clip",
    "vf_clip_param": "algorithm.value_clip",
    "vf_loss_coeff": "algorithm.value_coef",
    "entropy_coeff": "algorithm.entropy_coef",
    "grad_clip": "algorithm.max_grad_norm",
    "lr_schedule": "algorithm.schedule (linear or constant)",
    "num_workers": "env.num_envs (and env.processes)",
    "num_env_runners": "env.num_envs (and env.processes)",
    "num_envs_per_worker": "env.num_envs",
    "num_envs_per_env_runner": "env.num_envs",
    "env_config": "env.kwargs",
    "fcnet_hiddens": "network.hidden",
    "fcnet_activation": "network.activation",
    "use_lstm": "network.memory (none, gru or lstm)",
    "lstm_cell_size": "network.memory_size",
    "observation_filter": "algorithm.normalize_observations",
    "timesteps_total": "limits.total_steps",
    # Sample Factory
    "rollout": "algorithm.fragment_length",
    "recurrence": "network.memory (none, gru or lstm)",
    "num_batches_per_epoch": "algorithm.minibatch_size (steps in a minibatch, not how many minibatches)",
    "ppo_clip_ratio": "algorithm.clip",
    "ppo_clip_value": "algorithm.value_clip",
    "exploration_loss_coeff": "algorithm.entropy_coef",
    "value_loss_coeff": "algorithm.value_coef",
    "train_for_env_steps": "limits.total_steps",
    "train_for_seconds": "limits.wall_s",
    "normalize_input": "algorithm.normalize_observations",
    "normalize_returns": "algorithm.normalize_rewards",
    "num_envs_per_agent": "env.num_envs",
    "env_frameskip": "env.wrappers (action_repeat(4))",
    "env_framestack": "env.wrappers (frame_stack(4))",
    "encoder_mlp_layers": "network.hidden",
    "nonlinearity": "network.activation",
    "use_rnn": "network.memory (none, gru or lstm)",
    "rnn_type": "network.memory (none, gru or lstm)",
    "rnn_size": "network.memory_size",
    "save_every_sec": "checkpoint.every_s",
    "keep_checkpoints": "checkpoint.keep",
    # several of them, and the literature
    "lr": "algorithm.learning_rate",
    "alpha": "algorithm.learning_rate",
    "discount": "algorithm.gamma",
    "gae": "algorithm.gae_lambda",
    "lam": "algorithm.gae_lambda",
    "epsilon": "algorithm.clip",
    "clip_eps": "algorithm.clip",
    "horizon": "algorithm.fragment_length",
    "epochs": "algorithm.num_epochs",
    "steps": "limits.total_steps",
    "hidden_sizes": "network.hidden",
    "hidden_size": "network.hidden",
    "layers": "network.hidden",
    "normalize": "algorithm.normalize_observations (and algorithm.normalize_rewards)",
    "frame_stack": "env.wrappers (frame_stack(4))",
    "frame_skip": "env.wrappers (action_repeat(4))",
}
"""A name elsewhere -> the field here, and in brackets what differs."""


def explain_unknown(key: str, known: Collection[str]) -> str:
    """The end of the sentence "no such field": the field that was probably meant.

    >>> explain_unknown("n_steps", ["algorithm.fragment_length"])
    '; here it is algorithm.fragment_length'
    """
    name = key.rpartition(".")[2].replace("-", "_")
    here = FOREIGN_NAMES.get(name.lower(), "")
    if here.partition(" ")[0] in known:
        return f"; here it is {here}"
    same = [path for path in known if path.rpartition(".")[2] == name]
    if same:
        return f"; did you mean {' or '.join(repr(path) for path in same)}?"
    inside = [path for path in known if path.startswith(f"{key}.")]
    if inside:
        return f"; it is a section, with the fields {', '.join(inside)}"
    return _suggest_by_name(name, known) or suggest(key, known, 1) or "; `podium train ALGORITHM --help` lists them all"


def _suggest_by_name(name: str, known: Collection[str]) -> str:
    """The nearest field by its own name, whatever section the user put it in."""
    by_name = {path.rpartition(".")[2]: path for path in known}
    near = difflib.get_close_matches(name.lower(), by_name, n=1)
    return f"; did you mean {by_name[near[0]]!r}?" if near else ""
