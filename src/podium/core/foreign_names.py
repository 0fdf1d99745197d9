"""What other libraries call Podium's fields, and the hint for a name that no field has."""

import difflib
from collections.abc import Collection

from podium.core.imports import suggest

FRAGMENT = "algorithm.fragment_length (times env.num_envs, the steps of one update)"

FOREIGN_NAMES: dict[str, str | tuple[str, ...]] = {
    # Stable-Baselines3
    "n_steps": ("algorithm.n_step", "algorithm.fragment_length"),
    "batch_size": ("algorithm.minibatch_size", FRAGMENT),
    "n_epochs": "algorithm.num_epochs",
    "ent_coef": ("algorithm.entropy_coef", "algorithm.temperature"),
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
    "gradient_steps": "algorithm.update_ratio (updates for each environment step)",
    "train_freq": "algorithm.update_ratio (updates for each environment step)",
    "target_update_interval": "algorithm.tau (the target follows a little at every update)",
    "exploration_initial_eps": "algorithm.epsilon_start",
    "exploration_final_eps": "algorithm.epsilon_end",
    "exploration_fraction": "algorithm.epsilon_decay",
    "target_policy_noise": "algorithm.target_noise",
    "action_noise": "algorithm.noise",
    # CleanRL
    "num_steps": "algorithm.fragment_length",
    "update_epochs": "algorithm.num_epochs",
    "num_minibatches": "algorithm.minibatch_size (steps in a minibatch, not how many minibatches)",
    "anneal_lr": "algorithm.schedule (linear or constant)",
    "norm_adv": "algorithm.normalize_advantages",
    "clip_coef": "algorithm.clip",
    "clip_vloss": "algorithm.value_clip",
    "q_lr": "algorithm.learning_rate",
    "policy_lr": "algorithm.learning_rate",
    "start_e": "algorithm.epsilon_start",
    "end_e": "algorithm.epsilon_end",
    "exploration_noise": "algorithm.noise",
    "policy_noise": "algorithm.target_noise",
    "noise_clip": "algorithm.target_noise_clip",
    "policy_frequency": "algorithm.policy_delay",
    # RLlib
    "train_batch_size": ("algorithm.batch_size", FRAGMENT),
    "train_batch_size_per_learner": ("algorithm.batch_size", FRAGMENT),
    "rollout_fragment_length": "algorithm.fragment_length",
    "sgd_minibatch_size": ("algorithm.minibatch_size", "algorithm.batch_size"),
    "minibatch_size": "algorithm.batch_size",
    "num_sgd_iter": "algorithm.num_epochs",
    "lambda": "algorithm.gae_lambda",
    "lambda_": "algorithm.gae_lambda",
    "clip_param": "algorithm.clip",
    "vf_clip_param": "algorithm.value_clip",
    "vf_loss_coeff": "algorithm.value_coef",
    "entropy_coeff": ("algorithm.entropy_coef", "algorithm.temperature"),
    "grad_clip": "algorithm.max_grad_norm",
    "lr_schedule": "algorithm.schedule (linear or constant)",
    "num_workers": "topology.actors (env.num_envs are divided among them)",
    "num_env_runners": "topology.actors (env.num_envs are divided among them)",
    "num_rollout_workers": "topology.actors (env.num_envs are divided among them)",
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
    "alpha": ("algorithm.temperature", "algorithm.learning_rate"),
    "discount": "algorithm.gamma",
    "gae": "algorithm.gae_lambda",
    "lam": "algorithm.gae_lambda",
    "epsilon": ("algorithm.clip", "algorithm.epsilon_end"),
    "clip_eps": "algorithm.clip",
    "horizon": "algorithm.fragment_length",
    "epochs": "algorithm.num_epochs",
    "steps": "limits.total_steps",
    "polyak": "algorithm.tau",
    "replay_size": "algorithm.buffer_size",
    "replay_buffer_size": "algorithm.buffer_size",
    "popsize": "algorithm.population",
    "pop_size": "algorithm.population",
    "hidden_sizes": "network.hidden",
    "hidden_size": "network.hidden",
    "layers": "network.hidden",
    "normalize": "algorithm.normalize_observations (and algorithm.normalize_rewards)",
    "frame_stack": "env.wrappers (frame_stack(4))",
    "frame_skip": "env.wrappers (action_repeat(4))",
}
"""A name elsewhere -> the field here, and in brackets what differs. Several: the first that the algorithm has."""


def translate(name: str, known: Collection[str]) -> str | None:
    """Another library's name as a field among `known`, with what differs; None where there is none.

    >>> translate("ent_coef", ["algorithm.temperature", "algorithm.tau"])
    'algorithm.temperature'
    """
    found = FOREIGN_NAMES.get(name.lower().replace("-", "_"), ())
    here = (found,) if isinstance(found, str) else found
    return next((field for field in here if field.partition(" ")[0] in known), None)


def explain_unknown(key: str, known: Collection[str]) -> str:
    """The end of the sentence "no such field": the field that was probably meant.

    >>> explain_unknown("n_steps", ["algorithm.fragment_length"])
    '; here it is algorithm.fragment_length'
    """
    name = key.rpartition(".")[2].replace("-", "_")
    same = [path for path in known if path.rpartition(".")[2] == name]
    if same:
        return f"; did you mean {' or '.join(repr(path) for path in same)}?"
    if here := translate(name, known):
        return f"; here it is {here}"
    inside = [path for path in known if path.startswith(f"{key}.")]
    if inside:
        return f"; it is a section, with the fields {', '.join(inside)}"
    return _suggest_by_name(name, known) or suggest(key, known, 1) or "; `podium train ALGORITHM --help` lists them all"


def _suggest_by_name(name: str, known: Collection[str]) -> str:
    """The nearest field by its own name, whatever section the user put it in."""
    by_name = {path.rpartition(".")[2]: path for path in known}
    near = difflib.get_close_matches(name.lower(), by_name, n=1)
    return f"; did you mean {by_name[near[0]]!r}?" if near else ""
