"""The `podium` command: finds the sub-command, runs it, and turns errors into one line and an exit code."""

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from podium.cli.arguments import Command, parse, print_help
from podium.cli.catalogue import Algorithms, Envs, Presets
from podium.cli.logs import Logs
from podium.cli.machine import Bench, Doctor
from podium.cli.processes import Ps, Stop
from podium.cli.results import Eval, Plot, Runs
from podium.cli.run_files import Rm, Show
from podium.cli.train import Resume, Train
from podium.core.errors import ConfigError, PodiumError
from podium.core.imports import suggest

COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "plot": Plot,
    "runs": Runs,
    "show": Show,
    "rm": Rm,
    "ps": Ps,
    "logs": Logs,
    "stop": Stop,
    "envs": Envs,
    "algorithms": Algorithms,
    "presets": Presets,
    "doctor": Doctor,
    "bench": Bench,
}

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted.

    main(["train", "ppo", "CartPole-v1"])
    """
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
    except PodiumError as error:
        code = error.exit_code
        _complain(f"error: {error}")
    except KeyboardInterrupt:
        code = INTERRUPTED
        _complain("interrupted")
    except BrokenPipeError:
        code = 0
    _drop_closed_outputs()
    return code


def _complain(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr)


def _drop_closed_outputs() -> None:
    """What is buffered for a reader that has gone (`| head`) must not raise once more at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"podium {metadata.version('podium-rl')}")
        return 0
    name, *args = argv
    if name not in COMMANDS:
        hint = suggest(name, COMMANDS) or f"; there are: {', '.join(COMMANDS)}"
        raise ConfigError(f"podium {name}: no such command{hint}")
    own = args[: args.index("--")] if "--" in args else args
    if "-h" in own or "--help" in own:
        print_help(COMMANDS[name], f"podium {name}", own)
        return 0
    return parse(COMMANDS[name], f"podium {name}", args).run()


def _overview() -> str:
    lines = [
        "podium: distributed reinforcement learning, from a laptop to a cluster",
        "",
        "usage: podium COMMAND ...        (podium COMMAND --help says more, with examples)",
        "",
        *(f"  {name:<12} {(kind.__doc__ or '').partition(chr(10))[0]}" for name, kind in COMMANDS.items()),
        "",
        "examples:",
        "  podium train ppo CartPole-v1                          train",
        "  podium train ppo --help                               every setting, with default and meaning",
        "  podium eval --video                                   watch what it learned",
        "  podium runs                                           what was trained here",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
