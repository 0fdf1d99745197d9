"""A trained policy to ask for actions, from Python. It needs no environment: a run keeps what that was like."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from podium.algorithms import registry as algorithms
from podium.algorithms.algorithm import Algorithm
from podium.core import settings
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec, MultiDiscrete
from podium.core.types import Tree
from podium.envs import registry as envs
from podium.envs.codecs import Codec
from podium.envs.registry import ResolvedEnv
from podium.envs.spec_file import load_spec
from podium.launch.devices import configure
from podium.launch.plan import Plan
from podium.launch.restore import restore
from podium.ops.random_keys import row_keys, run_key
from podium.runs.directory import RunDirectory
from podium.workers.evaluator import single_act


@dataclass(frozen=True, eq=False)
class Agent:
    """What acts: an experiment's algorithm, and how its environment's observations and actions look."""

    experiment: Experiment
    algorithm: Algorithm
    spec: EnvSpec
    codec: Codec
    find_env: Callable[[], ResolvedEnv]

    def in_env(self, env: str | None, env_factory: Callable | None) -> "Agent":
        """The same agent with another environment to play in: an id, or what makes one."""
        config = self.experiment.env if env is None else replace(self.experiment.env, id=env)
        experiment = replace(self.experiment, env=config)
        return replace(self, experiment=experiment, find_env=partial(envs.resolve, config, env_factory))

    @cached_property
    def env(self) -> ResolvedEnv:
        """The environment, found when it is first wanted: to play in it. Raises ConfigError if it is another one."""
        env = self.find_env()
        if env.spec != self.spec:
            raise ConfigError(f"env = {self.experiment.env.id}: is {env.spec}; the policy was trained on {self.spec}")
        return env


class Policy:
    """Acts with the parameters of one checkpoint.

    action, memory = policy.predict(obs)                      # one observation, or a batch of them
    action, memory = policy.predict(obs, memory)              # later in the episode, if it is recurrent
    action, memory = policy.predict(obs, memory, episode_start=done)     # a batch whose rows begin anew by themselves
    """

    def __init__(self, agent: Agent, params: Tree, update: int, directory: RunDirectory) -> None:
        self.agent = agent
        self.params = params
        self.update = update
        self.directory = directory
        self._act = single_act(agent.algorithm)
        self._key = run_key(agent.experiment.seed)
        self._step = 0

    def predict(
        self, obs: Any, memory: Tree = None, deterministic: bool = True, mask: Any = None, episode_start: Any = None
    ) -> tuple[Any, Tree]:
        """The action for an observation, and the memory to give back with the next.

        Both are as the environment itself has them. `episode_start` says which rows begin an episode (bool, or one for
        each row): their memory is forgotten. Left out, all rows do where `memory` is None, and none where it is not.
        """
        codec, masked = self.agent.codec, self.agent.spec.masked
        obs, batched = codec.encode(obs)
        if masked and mask is None:
            raise ConfigError("predict: this environment tells which actions are legal; give mask=info['action_mask']")
        batch = jax.tree.leaves(obs)[0].shape[0]
        if batch == 0:
            raise ConfigError("predict: the batch is empty: must have at least one observation")
        first = _read_starts(memory is None if episode_start is None else episode_start, batch) | (memory is None)
        memory = self.agent.algorithm.memory(self.params, batch) if memory is None else memory
        keys = row_keys(self._key, np.arange(batch), self._step)
        self._step += 1
        legal = None if mask is None else _join_mask(mask, batch, self.agent.spec)
        action, _, memory = self._act(self.params, memory, obs, first, legal, keys, greedy=deterministic)
        action = codec.decode(np.asarray(action))
        return action if batched else action[0], memory

    def in_env(self, env: str | None, env_factory: Callable | None) -> "Policy":
        """The same policy, to be played in another environment of the same spec."""
        return Policy(self.agent.in_env(env, env_factory), self.params, self.update, self.directory)


def load_policy(
    directory: RunDirectory, env: str | None = None, env_factory: Callable | None = None, best: bool = False
) -> Policy:
    """The policy of a run's newest checkpoint, or of its best. `env` or `env_factory` is played in place of its own."""
    agent = load_agent(directory).in_env(env, env_factory)
    key, hyper = run_key(agent.experiment.seed), agent.experiment.hyper()
    template = jax.eval_shape(lambda: agent.algorithm.init(key, agent.spec, hyper))
    restored = restore(directory, template, part="train", best=best)
    return Policy(agent, agent.algorithm.params(restored.tree), restored.update, directory)


def load_agent(directory: RunDirectory) -> Agent:
    """What acted in a run."""
    experiment = settings.read_experiment(directory.experiment_toml)
    configure(experiment)
    spec, codec = load_spec(directory.env_json.read_text(encoding="utf-8"))
    return Agent(experiment, algorithms.make(experiment, spec), spec, codec, partial(envs.resolve, experiment.env))


def agent_of(plan: Plan) -> Agent:
    """The agent that a plan trains."""
    return Agent(plan.experiment, plan.algorithm, plan.env.spec, plan.env.codec, lambda: plan.env)


def _read_starts(starts: Any, batch: int) -> np.ndarray:
    starts = np.asarray(starts, bool)
    if starts.shape not in ((), (1,), (batch,)):
        raise ConfigError(f"predict: episode_start of shape {starts.shape}: must be one bool, or {batch}, one a row")
    return np.broadcast_to(starts, (batch,))


def _join_mask(mask: Any, batch: int, spec: EnvSpec) -> np.ndarray:
    """One mask [B, n], also of several choices, which Gymnasium has a tuple for. Each choice has a legal action."""
    parts = [np.asarray(part, bool) for part in (mask if isinstance(mask, tuple) else (mask,))]
    given, n = sum(part.size for part in parts), spec.mask_size
    if n == 0:
        raise ConfigError("predict: mask: continuous actions have none; leave it out")
    if given != batch * n:
        raise ConfigError(f"predict: mask of {given} flags: must be {n} for each of {batch} observation(s)")
    legal = np.concatenate([part.reshape(batch, -1) for part in parts], axis=1)
    choices = spec.action.nvec if isinstance(spec.action, MultiDiscrete) else (n,)
    # [B, choices]: one `any` for the flags of each choice.
    possible = np.logical_or.reduceat(legal, np.cumsum((0, *choices[:-1])), axis=1)
    if not possible.all():
        row, choice = np.argwhere(~possible)[0]
        of = f" for choice {choice}" if len(choices) > 1 else ""
        raise ConfigError(f"predict: mask of observation {row} has no legal action{of}: must have at least one")
    return legal
