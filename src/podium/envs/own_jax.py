"""A user's own JaxEnv, traced once before anything is compiled: its mistakes are told in its own terms."""

import jax
import numpy as np

from podium.core.errors import EnvError
from podium.core.specs import Action, Box, MultiDiscrete
from podium.envs.interface import JaxEnv, JaxStep
from podium.envs.jax_wrappers import strong
from podium.envs.own_host import check_array, check_observation
from podium.envs.user_errors import user_errors


def check_functions(env: JaxEnv, name: str) -> None:
    """Raise EnvError unless reset, step and mask take and give what the spec says: `check_functions(env, env_id)`."""
    key, action = jax.random.key(0), _example(env.spec.action)
    with user_errors(f"{name} raised in reset"):
        state, obs = jax.eval_shape(lambda: jax.tree.map(strong, env.reset(key)))
    check_observation(env.spec.observation, obs, (), f"{name} in reset: obs")
    with user_errors(f"{name} raised in step"):
        _, step = jax.eval_shape(lambda state: jax.tree.map(strong, env.step(state, action, key)), state)
    if not isinstance(step, JaxStep):
        raise EnvError(f"{name} in step: must return (state, JaxStep), not (state, {type(step).__name__})")
    check_observation(env.spec.observation, step.obs, (), f"{name} in step: obs")
    for part in ("reward", "terminated", "truncated"):
        check_array(getattr(step, part), (), None, f"{name} in step: {part}")
    if env.mask is not None:
        with user_errors(f"{name} raised in mask"):
            mask = jax.eval_shape(env.mask, state)
        check_array(mask, (env.spec.mask_size,), None, f"{name}: mask")


def _example(action: Action) -> np.ndarray:
    match action:
        case Box(shape):
            return np.zeros(shape, np.float32)
        case MultiDiscrete(nvec):
            return np.zeros(len(nvec), np.int32)
    return np.zeros((), np.int32)
