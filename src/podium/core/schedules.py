"""Schedules by their form: what `algorithm.schedules` may hold."""

from typing import Any

from podium.core.imports import is_python_path

NAMES = ("constant", "linear", "cosine")
RIGHT = "one of constant, linear, cosine, points such as [[0, 1], [0.5, 0.1]], or my_module:function"


def is_schedule(how: Any) -> bool:
    """Whether this is one: a name, a Python path, or points (part of the run, factor) in order.

    >>> is_schedule("linear"), is_schedule([[0, 1], [1, 0]]), is_schedule("slow")
    (True, True, False)
    """
    if isinstance(how, str):
        return how in NAMES or is_python_path(how)
    if not isinstance(how, list | tuple) or not how or not all(map(_is_point, how)):
        return False
    parts = [part for part, _ in how]
    return parts == sorted(set(parts)) and parts[0] >= 0 and parts[-1] <= 1


def _is_point(point: Any) -> bool:
    return isinstance(point, list | tuple) and len(point) == 2 and all(type(x) in (int, float) for x in point)
