"""Text after `--set key=` is read as the field's type wants it; what does not fit is refused."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from podium.core.errors import ConfigError
from podium.core.values import check_value, format_value, parse_value

Widths = tuple[int, ...]
Names = tuple[str, ...]
Memory = Literal["none", "gru"]

READ = [
    (int, "1e6", 1_000_000),
    (int, "1_000", 1000),
    (int, "-3", -3),
    (int, "1M", 1_000_000),
    (int, "100k", 100_000),
    (int, "1.1M", 1_100_000),
    (int, "2b", 2_000_000_000),
    (float | None, "1.5k", 1500.0),
    (float, "0.0005k", 0.5),
    (Widths, "1k,64", (1000, 64)),
    (float, "1", 1.0),
    (float, ".5", 0.5),
    (float, "1e-3", 0.001),
    (float, "inf", float("inf")),
    (float | None, "none", None),
    (float | None, "None", None),
    (str | None, "none", None),
    (Memory, "none", "none"),
    (bool, "true", True),
    (bool, "False", False),
    (str, "1.0", "1.0"),
    (str, "'a b'", "a b"),
    (str, "CartPole-v1", "CartPole-v1"),
    (Widths, "[64,64]", (64, 64)),
    (Widths, "64, 64", (64, 64)),
    (Widths, "64", (64,)),
    (Widths, "(256,)", (256,)),
    (Widths, "[]", ()),
    (Names, "[atari, frame_stack(4)]", ("atari", "frame_stack(4)")),
    (Names, "my:wrap(1, 2),atari", ("my:wrap(1, 2)", "atari")),
    (tuple[int, float], "[1, 2]", (1, 2.0)),
    (Mapping[str, Any], "{a = 1, b = x}", {"a": 1, "b": "x"}),
    (Mapping[str, Any], "{}", {}),
    (Any, "[1, two]", [1, "two"]),
    (Any, "2020-01-01", "2020-01-01"),
    (Any, "a,b,c", ["a", "b", "c"]),
    (Any, "1, 2.5, [x, y]", [1, 2.5, ["x", "y"]]),
    (Any, "'a,b'", "a,b"),
    (Any, "f(1, 2)", "f(1, 2)"),
    (Any, "3m", "3m"),  # the name of a map
]


@pytest.mark.parametrize(("kind", "text", "value"), READ)
def test_text_is_read_as_the_field_wants_it(kind: Any, text: str, value: Any) -> None:
    found = check_value("x", kind, parse_value(kind, text))
    assert found == value
    assert type(found) is type(value)


REFUSED = [
    (int, "2.5", "x = 2.5: must be a whole number"),
    (int, "true", "x = true: must be a whole number"),
    (int, "many", "x = 'many': must be a whole number"),
    (int, "none", "x = 'none': must be a whole number"),
    (int, "inf", "x = inf: must be a whole number"),
    (int, "0.5", "x = 0.5: must be a whole number"),
    (int, "1MM", "x = '1MM': must be a whole number"),
    (int, "k", "x = 'k': must be a whole number"),
    (float, "infk", "x = 'infk': must be a number"),
    (float, "fast", "x = 'fast': must be a number"),
    (float | None, "fast", "x = 'fast': must be a number or none"),
    (bool, "1", "x = 1: must be true or false"),
    (Memory, "lstn", "x = 'lstn': must be one of none, gru"),
    (Widths, "[64, wide]", "x = [64, 'wide']: must be a list of whole numbers"),
    (tuple[int, float], "[1]", "x = [1]: must be a list of 2: a whole number, a number"),
    (
        Mapping[str, Any],
        "3",
        "x = 3: must be a table of numbers, strings, true or false, lists and tables, such as {name = 1}",
    ),
]


@pytest.mark.parametrize(("kind", "text", "line"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(kind: Any, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_value("x", kind, parse_value(kind, text))
    assert str(caught.value) == line


@pytest.mark.parametrize(("kind", "value"), [(float, "1e-3"), (Names, "atari"), (int, None), (str, 3)])
def test_python_values_are_not_guessed(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError):
        check_value("x", kind, value)


@pytest.mark.parametrize("value", [None, True, 3, 0.1, "a-b", (64, 64), ("a", "b(1, 2)")])
def test_what_is_written_can_be_read(value: Any) -> None:
    kind = (
        bool | None
        if value is None
        else Widths
        if value == (64, 64)
        else Names
        if isinstance(value, tuple)
        else type(value)
    )
    assert check_value("x", kind, parse_value(kind, format_value(value))) == value
