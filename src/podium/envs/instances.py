"""Environments given as objects: Podium makes more of the same kind, so it wants what makes one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium

from podium.core.errors import ConfigError


def read_instance(env: Any) -> tuple[str, Callable[..., gymnasium.Env] | None]:
    """The id of an environment's kind, and what makes one where the id alone does not.

    read_instance(gymnasium.make("CartPole-v1"))                       # "CartPole-v1", None
    """
    kind = type(getattr(env, "unwrapped", env)).__name__
    spec = getattr(env, "spec", None)
    if not isinstance(env, gymnasium.Env) or spec is None:
        raise ConfigError(
            f"env = a {kind} object: Podium makes several of an environment, so give what makes one: its id, its class,"
            f" or lambda: {kind}(...)"
        )
    options = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    known = gymnasium.registry.get(spec.id)
    own = options, spec.max_episode_steps, spec.additional_wrappers
    if known is not None and own == (known.kwargs, known.max_episode_steps, ()):
        return spec.id, None
    again = replace(spec, kwargs=options)

    def make(render_mode: str | None = None) -> gymnasium.Env:
        try:
            return gymnasium.make(again, render_mode=render_mode, disable_env_checker=True)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"env = a {kind} object: cannot be made again ({error}); give a function that makes one"
            ) from None

    return f"<{spec.id}>", make
