"""Twin delayed DDPG (Fujimoto et al., 2018): two critics, noise on the target's action, a policy that waits.

All but targets and the delay is DDPG's, in ddpg.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from podium.algorithms import off_policy
from podium.algorithms.algorithm import Algorithm, Drawn, Transitions
from podium.algorithms.ddpg import DDPG, TrainState, make_agent, to_algorithm
from podium.core.algorithm_configs import TD3Config
from podium.core.config import Experiment
from podium.core.specs import EnvSpec


def make(config: TD3Config, experiment: Experiment, spec: EnvSpec) -> Algorithm:
    """TD3 for one environment spec."""
    ddpg = make_agent(config, experiment, spec, towers=2)
    return to_algorithm(config, ddpg, TD3(config, ddpg).update)


@dataclass(frozen=True, eq=False)
class TD3:
    """What TD3 does otherwise than DDPG with two critics."""

    config: TD3Config
    ddpg: DDPG

    def update(self, state: TrainState, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rows, share = off_policy.weigh(batch, axis)
        target = self.ddpg.targets(state, rows, self.next_action(state, rows, key))
        state, metrics, priorities = self.ddpg.train_critics(state, rows, share, target, axis)
        state = state._replace(updates=state.updates + 1)
        state = jax.lax.cond(
            state.updates % self.config.policy_delay == 0,
            lambda state: self.ddpg.train_policy(state, rows, share, axis),
            lambda state: state,
            state,
        )
        return state, metrics | {"policy_loss": state.policy_loss}, priorities

    def next_action(self, state: TrainState, rows: Transitions, key: jax.Array) -> jax.Array:
        """The target policy's, with clipped noise: values are to be smooth around it."""
        action = self.ddpg.choose(state.target_policy, rows.next_obs)
        reach = state.hyper["target_noise_clip"]
        noise = jnp.clip(state.hyper["target_noise"] * jax.random.normal(key, action.shape), -reach, reach)
        return jnp.clip(action + noise, -1.0, 1.0)
