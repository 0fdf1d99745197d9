"""The list of all fields that `--set` takes: name, default, choices and meaning."""

import shutil
import textwrap
from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin

from podium.core.fields import ConfigField, config_class, list_fields, sections
from podium.core.presets import find_preset
from podium.core.values import format_value

_COLUMN = 46


def describe_fields(algorithm: str, env: str | None = None) -> str:
    """Every field of an algorithm's experiment; with an environment, as its preset sets them.

    print(describe_fields("ppo", "CartPole-v1"))
    """
    kind = config_class(algorithm)
    name, preset = (env and find_preset(algorithm, env)) or (None, {})
    lines = [f"fields of {algorithm}{f' with preset {name}' if name else ''}: --set KEY=VALUE [KEY=VALUE ...]"]
    parts = sections(kind)
    shown = None
    for path, field in list_fields(kind).items():
        section, _, key = path.rpartition(".")
        if section != shown:
            lines += ["", _title(section, parts[section])] if section else [""]
            shown = section
        default = {"algorithm.name": algorithm, "env.id": env}.get(path) or field.default
        lines += _describe(field, preset.get(section, {}).get(key, default))
    return "\n".join(lines)


def _title(section: str, part: type) -> str:
    return f"  {section}: {(part.__doc__ or '').strip().partition(chr(10))[0]}"


def _describe(field: ConfigField, value: Any) -> list[str]:
    """`path = value`, then its meaning beside it, or below where that is too long."""
    start = f"    {field.path} = {'(required)' if value is MISSING else format_value(value)}"
    choices = [", ".join(get_args(kind)) for kind in _kinds(field.kind) if get_origin(kind) is Literal]
    meaning = f"{field.meaning}{''.join(f' ({choice})' for choice in choices)}".strip()
    width = max(shutil.get_terminal_size((100, 24)).columns, _COLUMN + 30) - _COLUMN
    wrapped = textwrap.wrap(meaning, width) or [""]
    if len(start) < _COLUMN:
        wrapped[0] = start.ljust(_COLUMN) + wrapped[0]
        return [wrapped[0].rstrip(), *(" " * _COLUMN + line for line in wrapped[1:])]
    return [start, *(" " * _COLUMN + line for line in wrapped)]


def _kinds(kind: Any) -> tuple[Any, ...]:
    return (kind, *get_args(kind))
