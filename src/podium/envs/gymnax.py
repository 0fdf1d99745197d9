"""gymnax environments as JaxEnv: its own autoreset is left out, and ends are kept apart as gymnax reports them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from podium.core.errors import ConfigError
from podium.core.imports import suggest
from podium.core.specs import Action, Array, Box, Discrete, EnvSpec, Observation
from podium.core.types import Tree
from podium.envs.interface import JaxEnv, JaxStep


def list_ids() -> list[str]:
    """Every id that gymnax has."""
    return list(gymnax.registered_envs)


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> JaxEnv:
    """An environment by id; kwargs are fields of its parameters.

    env = make_env("CartPole-v1", {"max_steps_in_episode": 200})
    """
    try:
        env, params = gymnax.make(env_id)
    except OSError as error:  # MNISTBandit-bsuite downloads its pictures
        raise ConfigError(f"env.id = 'gymnax:{env_id}': it needs data that cannot be fetched: {error}") from None
    params = replace_params(env_id, params, kwargs)
    encode = observation_encoder(env.observation_space(params))

    def reset(key: Any) -> tuple[Tree, Tree]:
        obs, state = env.reset_env(key, params)
        return state, encode(obs)

    def step(state: Tree, action: Any, key: Any) -> tuple[Tree, JaxStep]:
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = jnp.asarray(env.is_truncated(state, params), bool).reshape(()) & ~terminated
        return state, JaxStep(encode(obs), reward, terminated, truncated)

    _, shapes = jax.eval_shape(reset, jax.random.key(0))
    return JaxEnv(EnvSpec(observation_spec(shapes), action_spec(env_id, env.action_space(params))), reset, step)


def replace_params(env_id: str, params: Any, kwargs: Mapping[str, Any]) -> Any:
    """The default parameters with a user's own in their place."""
    known = [field.name for field in fields(params)]
    for name in kwargs:
        if name not in known:
            hint = suggest(name, known) or f"; known are {', '.join(known)}"
            raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: gymnax's {env_id} has no parameter {name!r}{hint}")
    return params.replace(**kwargs)


def observation_encoder(space: Any) -> Any:
    """Categories become one-hot, bytes stay, all else is float32."""
    if isinstance(space, spaces.Discrete):
        return lambda obs: jax.nn.one_hot(obs, space.n)
    return lambda obs: jax.tree.map(lambda x: x if x.dtype == jnp.uint8 else x.astype(jnp.float32), obs)


def observation_spec(shapes: Any) -> Observation:
    """From what reset really returns: gymnax's declared shapes are not all true to it."""
    if isinstance(shapes, Mapping):
        return {key: observation_spec(part) for key, part in shapes.items()}
    return Array(tuple(shapes.shape), str(shapes.dtype))


def action_spec(env_id: str, space: Any) -> Action:
    """A gymnax action space as ours."""
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.Box():
            shape = tuple(space.shape)
            low, high = (np.broadcast_to(np.asarray(s, float), shape).reshape(-1) for s in (space.low, space.high))
            return Box(shape, tuple(low.tolist()), tuple(high.tolist()))
    raise ConfigError(f"env.id = 'gymnax:{env_id}': its action space {space} is neither Discrete nor Box")
