"""The tree of errors: all are in core/errors.py, and its first lines draw it."""

import re
from pathlib import Path

from podium.core import errors

SOURCE = Path(errors.__file__).parents[1]


def test_every_error_is_in_the_tree_and_under_the_parent_that_is_drawn():
    for name, error in vars(errors).items():
        if isinstance(error, type) and error is not errors.PodiumError:
            (parent,) = error.__bases__
            assert re.search(rf"^{parent.__name__}\b|─ {parent.__name__}\b", str(errors.__doc__), re.M), parent
            assert re.search(rf"─ {name}  ", str(errors.__doc__)), name
    elsewhere = [path for path in SOURCE.rglob("*.py") if re.search(r"^class \w+Error\(", path.read_text(), re.M)]
    assert elsewhere == [Path(errors.__file__)]
