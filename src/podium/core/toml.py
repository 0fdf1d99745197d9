"""Experiments as TOML: None is a key left out, tuples are arrays, and the round trip is exact."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import tomli_w

from podium.core.config import FORMAT, Experiment
from podium.core.errors import ConfigError
from podium.core.fields import config_class, list_fields
from podium.core.values import check_value

_HEADER = """\
# A complete experiment; `podium train --config FILE` runs it again.
# complete = true: every field is here, one that is left out is none, and no preset is added.
"""


def dump(experiment: Experiment) -> str:
    """The whole experiment as TOML text.

    >>> print(dump(Experiment()).splitlines()[2])
    format = 1
    """
    tree: dict[str, Any] = {"format": FORMAT, "complete": True}
    for path, field in list_fields(type(experiment.algorithm)).items():
        section, _, name = path.rpartition(".")
        owner = getattr(experiment, section) if section else experiment
        value = check_value(path, field.kind, getattr(owner, name))
        if value is not None:
            (tree.setdefault(section, {}) if section else tree)[name] = value
    return _HEADER + tomli_w.dumps(tree)


def load(source: str | Path) -> dict[str, Any]:
    """The tree in a file (a Path) or a text (a str), as nested dicts; fields that a complete file leaves out are None.

    >>> load("seed = 3")
    {'seed': 3}
    """
    label = str(source) if isinstance(source, Path) else "configuration"
    try:
        tree = tomllib.loads(_read(source) if isinstance(source, Path) else source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label}: is not TOML: {error}") from None
    found = tree.pop("format", FORMAT)
    if found != FORMAT:
        raise ConfigError(
            f"{label}: format = {found!r}, and this podium reads format {FORMAT}: run it with the podium that wrote it,"
            " or print today's fields with `podium train ALGORITHM ENV --dry-run` and carry the values over"
        )
    complete = check_value(f"{label}: complete", bool, tree.pop("complete", False))
    return _with_nones(tree) if complete else tree


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _with_nones(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with each missing field that may be None set to it."""
    algorithm = tree.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(f"algorithm.name = {name!r}: must be an algorithm's name in a file with complete = true")
    for path, field in list_fields(config_class(name)).items():
        section, _, key = path.rpartition(".")
        owner = tree.setdefault(section, {}) if section else tree
        if isinstance(owner, dict) and NoneType in get_args(field.kind):
            owner.setdefault(key, None)
    return tree
