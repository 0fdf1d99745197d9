"""A trained policy to ask for actions, from Python."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from podium.core import settings
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box
from podium.core.types import Tree
from podium.launch import training
from podium.launch.plan import Plan, make_plan
from podium.launch.restore import restore
from podium.ops.keys import row_keys, run_key
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

    def predict(
        self, obs: Tree, memory: Tree = None, deterministic: bool = True, mask: np.ndarray | None = None
    ) -> tuple[Any, Tree]:
        """The action for an observation, and the memory to give back with the next; None starts an episode."""
        obs = _cast(self.plan.env.spec.observation, obs)
        if self.plan.env.spec.masked and mask is None:
            raise ConfigError("predict: this environment tells which actions are legal; give mask=info['action_mask']")
        batched = self._is_batched(obs)
        obs = obs if batched else jax.tree.map(lambda x: x[None], obs)
        batch = jax.tree.leaves(obs)[0].shape[0]
        first = np.full(batch, memory is None)
        memory = self.plan.algorithm.memory(self.params, batch) if memory is None else memory
        mask = None if mask is None else np.asarray(mask, bool).reshape(batch, -1)
        keys = row_keys(self._key, np.arange(batch), self._step)
        self._step += 1
        action, _, memory = self._act(self.params, memory, obs, first, mask, keys, greedy=deterministic)
        action = np.asarray(action)
        spec = self.plan.env.spec.action
        if isinstance(spec, Box):
            low, high = (np.reshape(side, spec.shape).astype(action.dtype) for side in (spec.low, spec.high))
            action = np.clip(action, low, high)
        return action if batched else action[0], memory

    def _is_batched(self, obs: Tree) -> bool:
        spec = self.plan.env.spec.observation
        while not isinstance(spec, Array):
            name = next(iter(spec))
            spec, obs = spec[name], obs[name]
        shape = np.shape(obs)
        if shape == spec.shape:
            return False
        if shape[1:] == spec.shape:
            return True
        raise ConfigError(f"predict: an observation of shape {shape}: must be {spec.shape}, or a batch of those")


def load_policy(directory: RunDirectory, env_factory: Callable | None = None, best: bool = False) -> Policy:
    """The policy of a run's newest checkpoint, or of its best."""
    experiment = settings.read_experiment(directory.experiment_toml)
    # Acting takes one device, however many it was trained on.
    experiment = replace(experiment, topology=replace(experiment.topology, devices=1))
    plan = make_plan(experiment, env_factory)
    template = jax.eval_shape(lambda: training.initial_state(plan))["train"]
    restored = restore(directory, template, part="train", best=best)
    return Policy(plan, plan.algorithm.params(restored.tree), restored.update)


def _cast(spec: Tree, obs: Tree) -> Tree:
    if isinstance(spec, Array):
        return np.asarray(obs, spec.dtype)
    return {name: _cast(part, obs[name]) for name, part in spec.items()}
