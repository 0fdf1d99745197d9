"""Command-line arguments: a dataclass is a command, tyro reads it, and each mistake is one line."""

import contextlib
import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import tyro

from podium.core.algorithm_configs import PPOConfig
from podium.core.errors import ConfigError
from podium.core.fields import config_class, list_fields
from podium.core.foreign_names import translate
from podium.core.imports import suggest
from podium.core.values import check_value, parse_value


@dataclass(frozen=True)
class Command:
    """One sub-command: its docstring and fields are its help, `run` does it and returns the exit code.

    A field called `rest` takes the arguments that no other field knows, and those after `--`.
    """

    EXAMPLES: ClassVar[str] = ""

    def run(self) -> int:
        """Do it."""
        raise NotImplementedError

    def more_help(self) -> str:
        """What the help says beyond the options, given the arguments beside --help."""
        return ""


CommandT = TypeVar("CommandT", bound=Command)


def flag(metavar: str, hint: str = "") -> Any:
    """How an argument looks in the help: `--total-steps N`."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
"""An option without a value."""


def parse(kind: type[CommandT], prog: str, args: Sequence[str]) -> CommandT:
    """Read the arguments of a command; wrong ones raise ConfigError.

    parse(Train, "podium train", ["ppo", "CartPole-v1", "--set", "env.num_envs=4", "seed=1"])
    """
    has_rest = any(field.name == "rest" for field in fields(kind))
    end = args.index("--") if has_rest and "--" in args else len(args)
    command, unknown = _read(kind, prog, args[:end])
    if has_rest:
        return replace(command, rest=(*unknown, *args[end + 1 :]))
    if unknown:
        raise ConfigError(_explain_argument(command, prog, unknown[0]))
    return command


def print_help(kind: type[Command], prog: str, args: Sequence[str]) -> None:
    """The help of a command, and what it can say about the arguments that came with --help."""
    others = [arg for arg in args if arg not in ("-h", "--help")]
    more = parse(kind, prog, others).more_help()
    with contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=prog, args=["--help"], config=_CONFIG)
    for part in (more, f"examples:\n{kind.EXAMPLES}" if kind.EXAMPLES else ""):
        if part:
            print(f"\n{part.rstrip()}")


def read_whole(option: str, text: str | None) -> int | None:
    """A whole number as typed, `1e6` and `1_000_000` too; None stays None."""
    return None if text is None else check_value(option, int, parse_value(int, text))


def read_limit(option: str, text: str | None) -> float | None:
    """A number as typed, infinity for `none`; None stays None."""
    if text is None or text.strip().lower() == "none":
        return None if text is None else math.inf
    return check_value(option, float, parse_value(float, text))


_CONFIG = (tyro.conf.FlagCreatePairsOff,)


def _read(kind: type[CommandT], prog: str, args: Sequence[str]) -> tuple[CommandT, list[str]]:
    said = io.StringIO()
    cli: Callable[..., tuple[CommandT, list[str]]] = tyro.cli
    try:
        with contextlib.redirect_stderr(said):
            return cli(kind, prog=prog, args=spread_sets(args), return_unknown_args=True, config=_CONFIG)
    except SystemExit:
        raise ConfigError(f"{prog}: {_one_line(said.getvalue())} (`{prog} --help` lists the arguments)") from None


def spread_sets(args: Sequence[str]) -> list[str]:
    """One `--set` before each of its settings, so that several may follow one.

    >>> spread_sets(["--set", "a=1", "b=2", "ppo"])
    ['--set', 'a=1', '--set', 'b=2', 'ppo']
    """
    spread: list[str] = []
    in_set = False
    for arg in args:
        is_setting = "=" in arg and not arg.startswith("-")
        if in_set and is_setting and spread[-1] != "--set":
            spread.append("--set")
        in_set = arg == "--set" or (in_set and (is_setting or spread[-1] == "--set"))
        spread.append(arg)
    return spread


def _one_line(box: str) -> str:
    """What tyro's boxed message says, without its title, its frame and what follows its first rule."""
    lines = [line.strip("|│ ") for line in box.splitlines()[1:]]
    said = itertools.dropwhile(_is_rule, lines)
    paragraph = " ".join(itertools.takewhile(lambda line: not _is_rule(line), said))
    return paragraph.rstrip(".") or "cannot read the arguments"


def _is_rule(line: str) -> bool:
    return not line.strip("-─╰╯+ ")


def _explain_argument(command: Command, prog: str, argument: str) -> str:
    if not argument.startswith("-"):
        return f"{prog}: one argument too many: {argument!r} (`{prog} --help` lists them)"
    option = argument.partition("=")[0]
    name = option.lstrip("-").replace("-", "_")
    positional = _positional(type(command))
    if name in positional:
        return f"{prog}: {name.upper()} is given without {option}: {prog} {' '.join(positional).upper()}"
    names = [field.name for field in fields(command)]
    if "set" in names and (setting := _field_named(name, getattr(command, "algorithm", None))):
        return f"{prog}: there is no {option}; use --set {setting}=VALUE"
    options = [f"--{name.replace('_', '-')}" for name in names if name not in (*positional, "rest")]
    return f"{prog}: there is no {option}{suggest(option, options) or f'; `{prog} --help` lists them'}"


def _positional(kind: type[Command]) -> list[str]:
    """The fields that are given by their place."""
    hints = get_type_hints(kind, include_extras=True)
    return [f.name for f in fields(kind) if any(mark is tyro.conf.Positional for mark in _marks(hints[f.name]))]


def _marks(kind: Any) -> tuple[Any, ...]:
    return getattr(kind, "__metadata__", ())


def _field_named(name: str, algorithm: str | None) -> str | None:
    """The field of `--set` that is meant by an option of its name, for this algorithm."""
    try:
        known = list_fields(config_class(algorithm or PPOConfig.name))
    except ConfigError:
        known = list_fields(PPOConfig)
    same = [path for path in known if name in (path, path.rpartition(".")[2])]
    if same:
        return same[0]
    here = translate(name, known)
    return here and here.partition(" ")[0]
