"""Settings to begin with, one TOML file for each algorithm, one table for each environment."""

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from podium.core.atari_games import GAMES
from podium.core.errors import ConfigError
from podium.core.imports import suggest

ATARI = "ALE/GAME-v5"
"""The table of an algorithm's file that every Atari game takes which has none of its own."""
_LIBRARIES = ("gymnasium", "envpool", "gymnax", "playground", "pettingzoo", "podium")


def list_presets() -> list[str]:
    """All names, such as `ppo/CartPole-v1`."""
    return list(_read_presets())


def load_preset(name: str, algorithm: str = "") -> dict[str, Any]:
    """A preset's settings as a nested dict; an unknown name raises ConfigError with the nearest of the algorithm.

    >>> load_preset("ppo/CartPole-v1")["limits"]
    {'total_steps': 100000}
    """
    presets = _read_presets()
    if name not in presets:
        hint = suggest(name, [known for known in presets if known.startswith(algorithm)])
        raise ConfigError(f"preset = {name!r}: no such preset{hint or '; `podium presets` lists them'}")
    return presets[name]


def load_topology(name: str) -> dict[str, Any]:
    """An architecture's settings; an unknown one raises ConfigError with those there are.

    >>> load_topology("seed")["topology"]["mode"]
    'served'
    """
    known = [preset.removeprefix("topology/") for preset in list_presets() if preset.startswith("topology/")]
    if name not in known:
        raise ConfigError(f"topology = {name!r}: must be one of {', '.join(known)}{suggest(name, known)}")
    return load_preset(f"topology/{name}")


def find_preset(algorithm: str, env: str) -> tuple[str, dict[str, Any]] | None:
    """The preset that fits, whatever library steps the environment and whichever version it has.

    >>> find_preset("ppo", "envpool:HalfCheetah-v4")[0], find_preset("impala", "PongNoFrameskip-v4")[0]
    ('ppo/HalfCheetah-v5', 'impala/ALE/Pong-v5')
    >>> find_preset("ppo", "ALE/Qbert-v5")[0]
    'ppo/ALE/GAME-v5'
    """
    library, _, env_id = env.rpartition(":")
    if library and library not in _LIBRARIES:
        return None  # a Python path of the user's own
    presets = _read_presets()
    same = [name for name in presets if name.partition("/")[0] == algorithm and _task(name) == _task(env_id)]
    # Versions of a task differ in details that settings survive: HalfCheetah-v4 takes those of HalfCheetah-v5.
    exact = [name for name in same if name.endswith(env_id)]
    family = [f"{algorithm}/{ATARI}"] if _task(env_id) in GAMES and f"{algorithm}/{ATARI}" in presets else []
    return next(((name, presets[name]) for name in (*exact, *same, *family)), None)


def _task(name: str) -> str:
    """A task without library, suffix and version: `Pong` of PongNoFrameskip-v4, and of impala/ALE/Pong-v5."""
    return re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", re.split("[/:]", name)[-1])


@cache
def _read_presets() -> dict[str, dict[str, Any]]:
    files = sorted((f for f in resources.files(__name__).iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {
        f"{file.name.removesuffix('.toml')}/{env}": settings
        for file in files
        for env, settings in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }
