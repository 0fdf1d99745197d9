"""Soft actor-critic (Haarnoja et al., 2018): a policy as random as it can be without losing return.

Reads top to bottom: state, act, targets, critics, policy, temperature. Actions are in units of half their range, so
that an entropy means the same whatever their bounds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms import off_policy
from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.algorithms.collectives import add_up
from podium.algorithms.off_policy import ActionBox, ReplayShare
from podium.algorithms.optimizers import OptimizedParams, descend, start
from podium.core.algorithm_configs import SACConfig
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import ActInput, Tree
from podium.networks.critics import Critics, PolicyNetwork, make_critics, make_policy
from podium.ops import random_keys
from podium.ops.distributions import LOG_STD_RANGE
from podium.ops.returns import bootstrapped_returns


class Params(NamedTuple):
    """What actors need: the policy, and whether to play at random because nothing was learned yet."""

    policy: Tree
    random: jax.Array


class TrainState(NamedTuple):
    """All that a checkpoint must hold."""

    policy: OptimizedParams
    critics: OptimizedParams
    target_critics: Tree
    log_temperature: OptimizedParams
    updates: jax.Array
    hyper: dict[str, jax.Array]


def make(config: SACConfig, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """SAC for one environment spec."""
    box = off_policy.make_box(spec, config.name)
    policy = make_policy(experiment.network, spec, 2 * box.spec.size)
    sac = SAC(config, policy, make_critics(experiment.network, spec, towers=2), box)
    return Algorithm(
        experience=off_policy.experience(config),
        init=sac.init,
        params=lambda state: Params(state.policy.params, state.updates == 0),
        memory=lambda params, batch: (),
        act=sac.act,
        update=sac.update,
    )


@dataclass(frozen=True, eq=False)
class SAC:
    """The pure functions of the algorithm, for one environment spec."""

    config: SACConfig
    policy: PolicyNetwork
    critics: Critics
    box: ActionBox

    @property
    def target_entropy(self) -> float:
        wished = self.config.target_entropy
        return -float(self.box.spec.size) if wished is None else wished

    def init(self, key: jax.Array, spec: EnvSpec, hyper: dict[str, float]) -> TrainState:
        policy_key, critics_key = jax.random.split(key)
        critics = self.critics.init(critics_key)
        return TrainState(
            policy=start(self.policy.init(policy_key)),
            critics=start(critics),
            # A copy: an array that is in a state twice cannot be given away to be changed in place.
            target_critics=jax.tree.map(jnp.copy, critics),
            log_temperature=start(jnp.zeros(())),
            updates=jnp.zeros((), jnp.int32),
            hyper={name: jnp.float32(value) for name, value in hyper.items()},
        )

    def act(self, params: Params, memory: Tree, inputs: ActInput, greedy: bool) -> tuple[jax.Array, Tree, Tree]:
        mean, log_std = self.gaussian(params.policy, inputs.obs)
        if greedy:
            return self.box.from_unit(jnp.tanh(mean)), {}, memory
        noise = inputs.exploration * random_keys.normal(inputs.key, (self.box.spec.size,)).T
        action = jnp.where(params.random, self.box.draw(inputs.key), jnp.tanh(mean + jnp.exp(log_std) * noise))
        return self.box.from_unit(action), {}, memory

    def gaussian(self, policy: Tree, obs: Tree) -> tuple[jax.Array, jax.Array]:
        """Mean and log standard deviation [k, B] of actions before they are squashed."""
        mean, log_std = jnp.split(self.policy.apply(policy, obs), 2)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)

    def sample(self, policy: Tree, obs: Tree, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [k, B] in units of the box, which gradients flow through, and their log-probabilities [B].

        With u = m + σz and a = tanh u, log π(a|s) = log N(z) - log σ - log(1 - tanh² u): `distributions.TanhGaussian`
        for the u that was drawn, features first, and with less to compute where z is known.
        """
        mean, log_std = self.gaussian(policy, obs)
        # Not random_keys.normal: XLA would fuse its rounds into each kernel that looks at z, and again into the
        # gradient's.
        z = jax.random.normal(key, mean.shape)
        u = mean + jnp.exp(log_std) * z
        log_slope = 2 * (np.log(2) - u - jax.nn.softplus(-2 * u))
        return jnp.tanh(u), jnp.sum(-0.5 * (z**2 + np.log(2 * np.pi)) - log_std - log_slope, axis=0)

    def update(self, state: TrainState, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rows, share = off_policy.weigh(batch, axis)
        next_key, key = jax.random.split(key)
        temperature, rate, tau = self.temperature(state), state.hyper["learning_rate"], state.hyper["tau"]
        target, action = self.targets(state, rows, temperature, next_key), self.box.to_unit(rows.action)
        critics, metrics, priorities = off_policy.regress(
            state.critics, self.critics.apply, rows, share, action, target, rate, axis
        )

        def loss(policy: Tree) -> tuple[jax.Array, tuple]:
            return self.policy_loss(policy, critics.params, temperature, rows, share, key)

        gradient, (terms, surplus) = add_up(jax.grad(loss, has_aux=True)(state.policy.params), axis)
        state = state._replace(
            policy=descend(state.policy, gradient, rate),
            critics=critics,
            target_critics=off_policy.track(state.target_critics, critics.params, tau),
            log_temperature=self.adapt(state, surplus),
            updates=state.updates + 1,
        )
        return state, metrics | terms | {"temperature": temperature}, priorities

    def temperature(self, state: TrainState) -> jax.Array:
        fixed = self.config.temperature
        return jnp.exp(state.log_temperature.params) if fixed is None else jnp.float32(fixed)

    def targets(self, state: TrainState, rows: Transitions, temperature: jax.Array, key: jax.Array) -> jax.Array:
        """Rewards and then the soft value [B]: the least of the target critics' values, and the entropy's worth."""
        action, log_prob = self.sample(state.policy.params, rows.next_obs, key)
        value = jnp.min(self.critics.apply(state.target_critics, rows.next_obs, action), axis=0)
        soft_value = value - temperature * log_prob
        return bootstrapped_returns(rows.rewards, rows.steps, soft_value, rows.terminated, state.hyper["gamma"])

    def policy_loss(
        self, policy: Tree, critics: Tree, temperature: jax.Array, rows: Transitions, share: ReplayShare, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """E[α log π(a|s) - min q(s, a)] of actions that gradients flow through; metrics, and the entropy's surplus."""
        action, log_prob = self.sample(policy, rows.obs, key)
        value = jnp.min(self.critics.apply(critics, rows.obs, action), axis=0)
        loss = jnp.sum(share.weighed * (temperature * log_prob - value))
        metrics = {"policy_loss": loss, "entropy": -jnp.sum(share.plain * log_prob)}
        return loss, (metrics, jnp.sum(share.weighed * (-log_prob - self.target_entropy)))

    def adapt(self, state: TrainState, surplus: jax.Array) -> OptimizedParams:
        """The temperature falls where the entropy is above its target, and rises where it is below.

        As in the authors' code, the surplus is the gradient of log α, not times α: it moves as fast when small.
        """
        if self.config.temperature is not None:
            return state.log_temperature
        return descend(state.log_temperature, surplus, state.hyper["learning_rate"])
