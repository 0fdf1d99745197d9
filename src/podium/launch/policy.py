"""A trained policy to ask for actions, from Python."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from podium.core import settings
from podium.core.errors import ConfigError
from podium.core.types import Tree
from podium.launch import training
from podium.launch.plan import Plan, make_plan
from podium.launch.restore import restore
from podium.ops.random_keys import row_keys, run_key
from podium.runs.directory import RunDirectory
from podium.workers.evaluator import single_act


class Policy:
    """Acts with the parameters of one checkpoint.

    action, memory = policy.predict(obs)                      # one observation, or a batch of them
    action, memory = policy.predict(obs, memory)              # later in the episode, if it is recurrent
    """

    def __init__(self, plan: Plan, params: Tree, update: int) -> None:
        self.plan = plan
        self.params = params
        self.update = update
        self._act = single_act(plan.algorithm)
        self._key = run_key(plan.experiment.seed)
        self._step = 0

    def predict(self, obs: Any, memory: Tree = None, deterministic: bool = True, mask: Any = None) -> tuple[Any, Tree]:
        """The action for an observation, and the memory to give back with the next; None starts an episode.

        Both are as the environment itself has them: it is what a run's environments gave and took.
        """
        codec, masked = self.plan.env.codec, self.plan.env.spec.masked
        obs, batched = codec.encode(obs)
        if masked and mask is None:
            raise ConfigError("predict: this environment tells which actions are legal; give mask=info['action_mask']")
        batch = jax.tree.leaves(obs)[0].shape[0]
        first = np.full(batch, memory is None)
        memory = self.plan.algorithm.memory(self.params, batch) if memory is None else memory
        keys = row_keys(self._key, np.arange(batch), self._step)
        self._step += 1
        legal = None if mask is None else _join_mask(mask, batch)
        action, _, memory = self._act(self.params, memory, obs, first, legal, keys, greedy=deterministic)
        action = codec.decode(np.asarray(action))
        return action if batched else action[0], memory


def load_policy(directory: RunDirectory, env_factory: Callable | None = None, best: bool = False) -> Policy:
    """The policy of a run's newest checkpoint, or of its best."""
    experiment = settings.read_experiment(directory.experiment_toml)
    # Acting takes one device, however many it was trained on.
    experiment = replace(experiment, topology=replace(experiment.topology, devices=1))
    plan = make_plan(experiment, env_factory, learns=False)
    template = jax.eval_shape(lambda: training.initial_state(plan))["train"]
    restored = restore(directory, template, part="train", best=best)
    return Policy(plan, plan.algorithm.params(restored.tree), restored.update)


def _join_mask(mask: Any, batch: int) -> np.ndarray:
    """One mask [B, n], also of several choices, which Gymnasium has a tuple for."""
    parts = mask if isinstance(mask, tuple) else (mask,)
    return np.concatenate([np.asarray(part, bool).reshape(batch, -1) for part in parts], axis=1)
