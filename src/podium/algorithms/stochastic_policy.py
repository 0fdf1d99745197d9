"""A stochastic policy that a value belongs to: what PPO and A2C act with, whatever the actions are."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.core.algorithm_configs import A2CConfig, PPOConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import Box, EnvSpec
from podium.core.types import ActInput, Tree
from podium.networks import network as networks
from podium.networks.network import Network
from podium.ops import distributions, statistics


class Params(NamedTuple):
    """What actors need: the network, the Gaussian's width, and the observation normaliser."""

    network: Tree
    log_std: jax.Array | None
    observations: statistics.RunningStatistics | None


@dataclass(frozen=True, eq=False)
class StochasticPolicy:
    """Its pure functions, for one experiment and environment spec."""

    config: A2CConfig | PPOConfig
    spec: EnvSpec
    network: Network

    def init(self, key: jax.Array) -> Params:
        action, config = self.spec.action, self.config
        log_std = jnp.full(action.size, config.log_std, jnp.float32) if isinstance(action, Box) else None
        observations = statistics.init(self.spec.observation, pictures=True) if config.normalize_observations else None
        return Params(self.network.init(key), log_std, observations)

    def act(self, params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        obs = jax.tree.map(lambda x: x[None], normalize(params, inputs.obs))
        outputs, _, memory = self.network.apply(params.network, memory, obs, inputs.first[None])
        policy = self.distribution(params, outputs[0], inputs.mask)
        action = policy.mode() if greedy else policy.sample(inputs.key)
        # Of the action as the learner will see it: a squashed one on its bound has lost digits on both sides.
        return action, {"log_prob": policy.log_prob(action)}, memory

    def distribution(self, params: Params, outputs: jax.Array, mask: jax.Array | None) -> Any:
        """Of actions, by the network's outputs [..., n]."""
        return distributions.make(self.spec.action, outputs, params.log_std, mask, self.config.squash)

    @property
    def chunk(self) -> int:
        """Steps whose activations stay in a CPU's cache while their gradient is computed."""
        pixels = any(part.is_image for part in jax.tree.leaves(self.spec.observation))
        return 64 if pixels else 4096


def make(config: A2CConfig | PPOConfig, experiment: Experiment, spec: EnvSpec) -> StochasticPolicy:
    """The policy of an experiment, on a network with as many outputs as the actions' distribution takes."""
    if config.squash and not (isinstance(spec.action, Box) and spec.action.is_bounded):
        raise ConfigError("algorithm.squash = true: needs continuous actions with finite bounds; use false here")
    return StochasticPolicy(
        config, spec, networks.make(experiment.network, spec, distributions.num_outputs(spec.action))
    )


def normalize(params: Params, obs: Tree) -> Tree:
    """Observations as the network takes them, by the statistics that came with its parameters."""
    return obs if params.observations is None else statistics.normalize(params.observations, obs)
