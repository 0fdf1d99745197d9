"""Values of configuration fields: read from text, checked against a field's type, written back.

Text is what stands after `--set key=`: TOML, with the quotes of strings left away. Where a number is wanted, `100k`,
`1.5M` and `2B` are numbers; where anything may stand (`env.kwargs.NAME`), `a, b, c` is a list.
"""

import tomllib
import types
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union, get_args, get_origin

from podium.core.errors import ConfigError, MismatchError

_SINGULAR = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(None): "none"}
_PLURAL = {bool: "true or false", int: "whole numbers", float: "numbers", str: "strings"}
_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9}
_PLAIN = "a number, a string, true or false, a list or a table"


def parse_value(kind: Any, text: str) -> Any:
    """Read text as well as `kind` allows; what fits no reading stays a string, for `check_value` to refuse.

    >>> parse_value(tuple[int, ...], "[64, 64]"), parse_value(float | None, "none"), parse_value(str, "CartPole-v1")
    ((64, 64), None, 'CartPole-v1')
    """
    text = text.strip()
    options = _alternatives(kind)
    if any(get_origin(option) is Literal and text in get_args(option) for option in options):
        return text
    if type(None) in options and text.lower() in ("none", "null"):
        return None
    for option in options:
        if get_origin(option) is tuple:
            elements = get_args(option)
            items = _split(_without_brackets(text))
            return tuple(parse_value(elements[i], item) for i, item in _spread(elements, items))
    if (int in options or float in options) and (number := _parse_scaled(text)) is not None:
        return number
    return _unquote(text) if str in options else _parse_plain(text)


def check_value(path: str, kind: Any, value: Any) -> Any:
    """The value as `kind` wants it (whole floats become ints, lists tuples), or ConfigError naming `path`.

    >>> check_value("limits.total_steps", int, 1e6)
    1000000
    """
    try:
        return _conform(kind, value)
    except MismatchError:
        raise ConfigError(f"{path} = {format_value(value, quote=True)}: must be {describe_kind(kind)}") from None


def describe_kind(kind: Any) -> str:
    """What would be right, in words.

    >>> describe_kind(tuple[int, ...]), describe_kind(float | None)
    ('a list of whole numbers', 'a number or none')
    """
    options = _alternatives(kind)
    if len(options) > 1:
        return " or ".join(describe_kind(option) for option in options)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(format_value(choice) for choice in args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"a list of {_PLURAL.get(args[0], describe_kind(args[0]))}"
    if origin is tuple:
        return f"a list of {len(args)}: " + ", ".join(describe_kind(arg) for arg in args)
    if _is_mapping(kind):
        return "a table of numbers, strings, true or false, lists and tables, such as {name = 1}"
    return _SINGULAR.get(kind, _PLAIN)


def format_value(value: Any, *, quote: bool = False) -> str:
    """A value as `--set` takes it; `quote` puts strings in quotes, for messages.

    >>> format_value((64, 64)), format_value({"a": True}), format_value(None)
    ('[64, 64]', '{a = true}', 'none')
    """
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value) if quote else value
        case Mapping():
            return "{" + ", ".join(f"{key} = {format_value(item, quote=True)}" for key, item in value.items()) + "}"
        case tuple() | list():
            return "[" + ", ".join(format_value(item, quote=quote) for item in value) + "]"
    return repr(value)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _conform(kind: Any, value: Any) -> Any:
    """`value` as `kind` wants it, or MismatchError."""
    options = _alternatives(kind)
    if len(options) > 1:
        return _conform_any(options, value)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in args)
        return _require(fits, value)
    if origin is tuple:
        return _conform_tuple(args, value)
    if _is_mapping(kind):
        return _conform_plain(_require(isinstance(value, Mapping), value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float):
        return int(_require(value.is_integer(), value))
    if kind in (int, float):
        return kind(_require(isinstance(value, kind) and not isinstance(value, bool), value))
    if kind in (bool, str, type(None)):
        return _require(isinstance(value, kind), value)
    return _conform_plain(value)


def _conform_any(options: tuple[Any, ...], value: Any) -> Any:
    # The type that the value has already comes before those that it can be turned into.
    for option in sorted(options, key=lambda option: type(value) is not option):
        try:
            return _conform(option, value)
        except MismatchError:
            continue
    raise MismatchError


def _conform_tuple(elements: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    _require(isinstance(value, tuple | list), value)
    if Ellipsis not in elements:
        _require(len(value) == len(elements), value)
    return tuple(_conform(elements[i], item) for i, item in _spread(elements, value))


def _conform_plain(value: Any) -> Any:
    """What TOML can hold: tables, lists, strings, numbers, booleans, at any depth."""
    match value:
        case bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {_require(isinstance(key, str), key): _conform_plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_conform_plain(item) for item in value]
    raise MismatchError


def _require(fits: bool, value: Any) -> Any:
    if not fits:
        raise MismatchError
    return value


def _spread(elements: tuple[Any, ...], items: Any) -> list[tuple[int, Any]]:
    """Each item with the index of its element type; `tuple[int, ...]` has one type for all."""
    last = 0 if Ellipsis in elements else len(elements) - 1
    return [(min(i, last), item) for i, item in enumerate(items)]


def _parse_plain(text: str) -> Any:
    """Numbers, booleans, lists and tables; anything else is a string."""
    if text in ("True", "False"):
        return text == "True"
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if list(parsed) == ["value"] and isinstance(parsed["value"], int | float | str | list | dict):
        return parsed["value"]
    if text.startswith("[") and text.endswith("]"):
        return [_parse_plain(item) for item in _split(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        pairs = [item.partition("=") for item in _split(text[1:-1])]
        return {_unquote(key.strip()): _parse_plain(item.strip()) for key, _, item in pairs}
    try:
        return float(text)  # .5 and 5. are no TOML, but numbers to everybody
    except ValueError:
        pass
    items = _split(text)
    return [_parse_plain(item) for item in items] if len(items) > 1 else _unquote(text)


def _parse_scaled(text: str) -> int | float | None:
    """`100k`, `1.5M` or `2B` as a number; None if it is no such text."""
    scale = _SCALES.get(text[-1:].lower())
    try:
        number = None if scale is None else Decimal(text[:-1]) * scale
    except InvalidOperation:
        return None
    if number is None or not number.is_finite():
        return None
    return int(number) if number == number.to_integral_value() else float(number)


def _split(text: str) -> list[str]:
    """The items between commas that stand in no bracket and no quotes."""
    items, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]


def _without_brackets(text: str) -> str:
    return text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text
