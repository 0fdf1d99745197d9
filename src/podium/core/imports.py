"""Things named by their Python path, `my_module:thing`, and near misses of names."""

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from podium.core.errors import ConfigError
from podium.core.user_frames import refusing


def is_python_path(name: str) -> bool:
    """Whether `name` looks like `my_module:thing`.

    >>> is_python_path("my_module:make_env"), is_python_path("CartPole-v1")
    (True, False)
    """
    module, _, attribute = name.partition(":")
    return bool(attribute) and all(part.isidentifier() for part in module.split(".")) and attribute.isidentifier()


def load_path(path: str, field: str) -> Any:
    """Import `my_module:thing`, looking in the working directory too.

    Raises:
        ConfigError: there is no such thing, or its module raised; names `field` and the user's own line.
    """
    module_name, _, attribute = path.partition(":")
    module = load_module(module_name, path, field)
    if not hasattr(module, attribute):
        hint = suggest(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise ConfigError(f"{field} = {path!r}: module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def load_module(name: str, path: str, field: str) -> Any:
    """Import a module that `path`, the value of `field`, names; in the working directory too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with refusing(f"{field} = {path!r}: importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(f"{field} = {path!r}: there is no module {error.name!r} here or installed") from None
            raise


def find_path(thing: Any, field: str) -> str:
    """The Python path of a function or class, `my_module:thing`: of a script or notebook it is `__main__:thing`.

    Raises:
        ConfigError: no path leads to it, as with a lambda or a function within a function.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", type(thing).__name__)
    if getattr(sys.modules.get(module or ""), name, None) is not thing:
        right = "must be a function or class at the top of a module, a script or a notebook"
        raise ConfigError(f"{field} = {name}: no name leads to it; {right}")
    return f"{module}:{name}"


def suggest(name: str, known: Iterable[str], most: int = 3) -> str:
    """The nearest known names as the end of a sentence, or nothing. What was typed is never among them.

    >>> suggest("learning_rat", ["learning_rate", "gamma"])
    "; did you mean 'learning_rate'?"
    """
    by_lower = {candidate.lower(): candidate for candidate in known if candidate != name}
    near = difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(by_lower[n]) for n in near)}?" if near else ""
