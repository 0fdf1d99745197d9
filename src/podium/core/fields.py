"""Every field of the configuration tree by its dotted path: type, default and meaning."""

import ast
import dataclasses
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, get_type_hints

from podium.core.algorithm_configs import ALGORITHMS, AlgorithmConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import is_python_path, load_path, suggest
from podium.core.section import Section


@dataclasses.dataclass(frozen=True)
class ConfigField:
    """One line of `podium train ALGORITHM --help`; `default` is MISSING where a class gives none."""

    path: str
    kind: Any
    default: Any
    meaning: str


def config_class(algorithm: str) -> type[AlgorithmConfig]:
    """The configuration of a built-in algorithm, or of one named by its Python path.

    The latter is a function `algorithm(config: MyConfig, ...)`: its first parameter's annotation says which.

    >>> config_class("ppo").__name__
    'PPOConfig'
    """
    if algorithm in ALGORITHMS:
        return ALGORITHMS[algorithm]
    if is_python_path(algorithm):
        return _annotated_config(algorithm, load_path(algorithm, "algorithm.name"))
    hint = suggest(algorithm, ALGORITHMS)
    raise ConfigError(
        f"algorithm.name = {algorithm!r}: no such algorithm{hint or '; there are: ' + ', '.join(ALGORITHMS)}"
        " (your own is named by its Python path, my_module:algorithm)"
    )


def sections(algorithm: type[AlgorithmConfig]) -> dict[str, type[Section]]:
    """The tree's sections by name, with the algorithm's own class in place."""
    kinds = get_type_hints(Experiment)
    found = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return found | {"algorithm": algorithm}


def list_fields(algorithm: type[AlgorithmConfig]) -> dict[str, ConfigField]:
    """All fields that `--set` takes, in the tree's order.

    >>> list_fields(config_class("ppo"))["env.num_envs"].default
    16
    """
    parts = sections(algorithm)
    fields: dict[str, ConfigField] = {}
    for name, field in _own_fields(Experiment).items():
        if name in parts:
            nested = _own_fields(parts[name])
            fields |= {f"{name}.{f.path}": dataclasses.replace(f, path=f"{name}.{f.path}") for f in nested.values()}
        else:
            fields[name] = field
    return fields


def _annotated_config(path: str, function: Any) -> type[AlgorithmConfig]:
    if not callable(function):
        raise ConfigError(f"algorithm.name = {path!r}: must be a function that makes an Algorithm, is {function!r}")
    kind = _first_annotation(function)
    if kind is inspect.Parameter.empty:
        return AlgorithmConfig
    if isinstance(kind, type) and issubclass(kind, AlgorithmConfig) and dataclasses.is_dataclass(kind):
        return kind
    raise ConfigError(
        f"algorithm.name = {path!r}: its first parameter is annotated {getattr(kind, '__name__', kind)!s},"
        " must be AlgorithmConfig or a dataclass that extends it"
    )


def _first_annotation(function: Callable[..., Any]) -> Any:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return next((parameter.annotation for parameter in parameters), inspect.Parameter.empty)


def _own_fields(owner: type) -> dict[str, ConfigField]:
    kinds, meanings = get_type_hints(owner), _meanings(owner)
    return {
        f.name: ConfigField(f.name, kinds[f.name], _default(f), meanings.get(f.name, ""))
        for f in dataclasses.fields(owner)
        if f.init
    }


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _meanings(owner: type) -> dict[str, str]:
    """The docstring under each field, those of parent classes included."""
    meanings: dict[str, str] = {}
    for parent in reversed(owner.__mro__):
        meanings |= _docstrings(parent.__module__).get(parent.__qualname__, {})
    return meanings


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> docstring for a module's classes; nothing where there is no source (a notebook)."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(importlib.import_module(module))))
    except (OSError, TypeError):
        return {}
    return {node.name: _field_docstrings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_docstrings(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
