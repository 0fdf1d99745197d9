"""Deep deterministic policy gradient (Lillicrap et al., 2016), with Gaussian noise.

Reads top to bottom: state, act, targets, critic, policy. TD3 is made of the same parts, with other targets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podium.algorithms import off_policy
from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.algorithms.collectives import add_up
from podium.algorithms.off_policy import ActionBox, ReplayShare
from podium.algorithms.optimizers import OptimizedParams, descend, start
from podium.core.algorithm_configs import DDPGConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import ActInput, Tree
from podium.networks.critics import Critics, PolicyNetwork, make_critics, make_policy
from podium.ops import random_keys
from podium.ops.returns import bootstrapped_returns


class Params(NamedTuple):
    """What actors need: the policy, its noise, and whether to play at random because nothing was learned yet."""

    policy: Tree
    noise: jax.Array
    random: jax.Array


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    policy: OptimizedParams
    critics: OptimizedParams
    target_policy: Tree
    target_critics: Tree
    updates: jax.Array
    policy_loss: jax.Array  # as of the policy's last update
    hyper: dict[str, jax.Array]


def make(config: DDPGConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """DDPG for one environment spec."""
    ddpg = make_agent(config, experiment, spec, towers=1)
    return to_algorithm(config, ddpg, ddpg.update)


def to_algorithm(config: DDPGConfig, agent: "DDPG", update: Callable) -> Algorithm:
    """What DDPG and TD3 have in common beside their updates."""
    return Algorithm(
        experience=off_policy.experience(config),
        init=agent.init,
        params=agent.params,
        memory=lambda params, batch: (),
        act=agent.act,
        update=update,
    )


@dataclass(frozen=True, eq=False)
class DDPG:
    """The pure functions of the algorithm, for one environment spec and any number of critics."""

    policy: PolicyNetwork
    critics: Critics
    box: ActionBox

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        policy_key, critics_key = jax.random.split(key)
        policy, critics = self.policy.init(policy_key), self.critics.init(critics_key)
        return TrainState(
            policy=start(policy),
            critics=start(critics),
            # Copies: an array that is in a state twice cannot be given away to be changed in place.
            target_policy=jax.tree.map(jnp.copy, policy),
            target_critics=jax.tree.map(jnp.copy, critics),
            updates=jnp.zeros((), jnp.int32),
            policy_loss=jnp.zeros(()),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def params(self, state: TrainState) -> Params:
        return Params(state.policy.params, state.hyper["noise"], state.updates == 0)

    def act(self, params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        action = self.choose(params.policy, inputs.obs)
        if not greedy:
            noise = inputs.exploration * params.noise * random_keys.normal(inputs.key, (self.box.spec.size,)).T
            action = jnp.where(params.random, self.box.draw(inputs.key), jnp.clip(action + noise, -1.0, 1.0))
        return self.box.from_unit(action), {}, memory

    def choose(self, policy: Tree, obs: Tree) -> jax.Array:
        """The policy's actions [k, B], in units of the box."""
        return jnp.tanh(self.policy.apply(policy, obs))

    def update(self, state: TrainState, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rows, share = off_policy.weigh(batch, axis)
        action = self.choose(state.target_policy, rows.next_obs)
        state, metrics, priorities = self.train_critics(state, rows, share, self.targets(state, rows, action), axis)
        state = self.train_policy(state, rows, share, axis)
        return state._replace(updates=state.updates + 1), metrics | {"policy_loss": state.policy_loss}, priorities

    def targets(self, state: TrainState, rows: Transitions, next_action: jax.Array) -> jax.Array:
        """Rewards and then the least of the target critics' values [B]."""
        next_value = jnp.min(self.critics.apply(state.target_critics, rows.next_obs, next_action), axis=0)
        return bootstrapped_returns(rows.rewards, rows.steps, next_value, rows.terminated, state.hyper["gamma"])

    def train_critics(
        self, state: TrainState, rows: Transitions, share: ReplayShare, target: jax.Array, axis: str | None
    ) -> tuple[TrainState, dict[str, jax.Array], jax.Array]:
        action, rate = self.box.to_unit(rows.action), state.hyper["learning_rate"]
        critics, metrics, priorities = off_policy.regress(
            state.critics, self.critics.apply, rows, share, action, target, rate, axis
        )
        return state._replace(critics=critics), metrics, priorities

    def train_policy(self, state: TrainState, rows: Transitions, share: ReplayShare, axis: str | None) -> TrainState:
        """A step towards actions that the first critic values more; then the targets follow both networks."""

        def loss(policy: Tree) -> jax.Array:
            value = self.critics.apply_first(state.critics.params, rows.obs, self.choose(policy, rows.obs))
            return -jnp.sum(share.weighed * value)

        policy_loss, gradient = add_up(jax.value_and_grad(loss)(state.policy.params), axis)
        policy = descend(state.policy, gradient, state.hyper["learning_rate"])
        tau = state.hyper["tau"]
        return state._replace(
            policy=policy,
            target_policy=off_policy.track(state.target_policy, policy.params, tau),
            target_critics=off_policy.track(state.target_critics, state.critics.params, tau),
            policy_loss=policy_loss,
        )


def make_agent(config: DDPGConfig, experiment: Experiment, spec: EnvSpec, towers: int) -> DDPG:
    """The functions of a deterministic policy with so many critics."""
    box = off_policy.make_box(spec, config.name)
    policy = make_policy(experiment.network, spec, box.spec.size)
    return DDPG(policy, make_critics(experiment.network, spec, towers), box)
