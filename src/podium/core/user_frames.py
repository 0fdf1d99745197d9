"""What a user's own code raised, in one line: the error, and the line of the user's own that led to it."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podium.core.errors import ConfigError, PodiumError

LONGEST = 300
"""Characters of an error's text that are shown."""


@contextmanager
def refusing(place: str) -> Iterator[None]:
    """Around a call of the user's own function: what it raises becomes a ConfigError of one line.

    with refusing("network.factory = 'my_module:make': it"):
        network = factory(config, spec, num_outputs)

    What Podium itself raises passes: it says already what is wrong.
    """
    try:
        yield
    except PodiumError:
        raise
    except Exception as error:
        raise ConfigError(f"{place} {describe_raised(error)}") from error


def describe_raised(error: Exception) -> str:
    """The error and where it comes from: `raised KeyError: 'x' (my_env.py, line 12, in step)`."""
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]}..."
    where = _own_frame(error)
    return f"raised {said} ({where})" if where else f"raised {said}"


def _own_frame(error: Exception) -> str:
    """The innermost frame that is the user's, neither Podium's nor an installed library's; "" where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_own(frame.filename):
            inside = "" if frame.name == "<module>" else f", in {frame.name}"
            return f"{_short(frame.filename)}, line {frame.lineno}{inside}"
    return ""


def _is_own(file: str) -> bool:
    foreign = (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), str(Path(__file__).parents[1]))
    return not file.startswith("<frozen") and not file.startswith(tuple(f"{place}{os.sep}" for place in foreign))


def _short(file: str) -> str:
    """Relative to the working directory, where it is inside."""
    return os.path.relpath(file) if file.startswith(f"{os.getcwd()}{os.sep}") else file
