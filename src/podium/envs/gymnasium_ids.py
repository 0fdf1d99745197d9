"""Gymnasium environments by id: which there are, and how one is made."""

import importlib
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium

from podium.core.errors import ConfigError
from podium.core.extras import install_line

GAME = re.compile(r"(?:ALE/(?P<name>\w+)|(?P<old>\w+?)(?:NoFrameskip|Deterministic)?)-v\d+")
"""An ALE game by its new name (ALE/Pong-v5) or by one of its old ones (Pong-v0, PongNoFrameskip-v4)."""


def list_ids() -> list[str]:
    """Every id that Gymnasium has, ALE games included where ale-py is installed."""
    with suppress(ConfigError):  # without ale-py it has none of them
        import_games()
    return list(gymnasium.registry)


def import_games() -> None:
    """Register the ALE games, which Gymnasium does not do by itself."""
    try:
        import ale_py
    except ImportError:
        raise ConfigError(f"env.id: ALE games need ale-py: {install_line('atari')}") from None
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)


def find_game(env_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """The name and the settings of an ALE game that is registered: ("Pong", {"frameskip": 1, ...}), whatever its id."""
    spec, match = gymnasium.registry.get(env_id), GAME.fullmatch(env_id)
    if spec is None or match is None or not str(spec.entry_point).startswith("ale_py"):
        return None
    return match["name"] or match["old"], spec.kwargs


def has_id(env_id: str) -> bool:
    """Whether `gymnasium.make` knows it; `my_module:MyEnv-v0` imports my_module first, as Gymnasium does."""
    module, colon, name = env_id.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            return False
    if name.startswith("ALE/") or "NoFrameskip" in name:
        import_games()
    elif name not in gymnasium.registry:
        with suppress(ConfigError):  # it may be no game at all
            import_games()
    return name in gymnasium.registry


def make_in(packages: Sequence[str], env_id: str, kwargs: Mapping[str, Any], render: bool = False) -> gymnasium.Env:
    """One environment after these packages were imported, which register it; in a spawned process too."""
    for package in packages:
        importlib.import_module(package)
    return make(env_id, kwargs, render)


def make(env_id: str, kwargs: Mapping[str, Any], render: bool = False) -> gymnasium.Env:
    """One environment; in a spawned process too, where ALE games must be registered again."""
    has_id(env_id)
    options = {**kwargs, "render_mode": "rgb_array"} if render else dict(kwargs)
    # by its spec, a game of an old name is made without the advice to take another
    named = gymnasium.registry[env_id] if find_game(env_id) else env_id
    try:
        # the checker's wrapper would look at each step; we check shapes and dtypes ourselves
        return gymnasium.make(named, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id = {env_id!r}: {what_to_install(str(error))}") from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id = {env_id!r}: needs {error.name!r}: pip install {error.name}") from None
    except (TypeError, gymnasium.error.Error) as error:
        if isinstance(error, TypeError) and not _is_mismatch(error, kwargs):
            raise  # a mistake in the environment, to be shown with its traceback
        raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: {env_id} refuses it: {error}") from None


def _is_mismatch(error: TypeError, kwargs: Mapping[str, Any]) -> bool:
    """Whether the constructor does not take these arguments: it, or one that it hands them on to, was not entered."""
    raised = error.__cause__ or error  # Gymnasium raises another one of its own from it
    *_, (frame, _) = traceback.walk_tb(raised.__traceback__)
    unknown = any(f"unexpected keyword argument {name!r}" in str(raised) for name in kwargs)
    return unknown or frame.f_globals.get("__name__") == gymnasium.make.__module__


def what_to_install(message: str) -> str:
    """What to install, from Gymnasium's message about a missing library."""
    if "box2d" in message.lower():
        return f"Box2D is not installed: {install_line('box2d')}"
    if "opencv" in message.lower():
        return f"OpenCV is not installed: {install_line('atari')}"
    return " ".join(message.split())
