"""`podium show` and `podium rm`: one run as it lies on disk."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional

from podium.cli.arguments import Command, Switch, flag
from podium.cli.tables import print_table
from podium.core.errors import ConfigError

if TYPE_CHECKING:
    from podium.runs.directory import RunDirectory


@dataclass(frozen=True)
class Show(Command):
    """Show one run: status, result, settings that differ from the defaults, accounting, files."""

    EXAMPLES: ClassVar[str] = """\
  podium show                                           the latest run
  podium show NAME"""

    name: Positional[Annotated[str, flag("[RUN]", "(default: latest)")]] = "latest"
    """Name or path of a run."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Show."""
        from podium.runs.directory import find_run
        from podium.runs.overview import current_summary
        from podium.runs.results import describe_result

        run = find_run(self.name, self.root)
        summary = current_summary(run)
        print(f"run {run.path}: {summary['status']}")
        print(f"result: {describe_result(summary)}")
        for note in summary.get("notes") or ():
            print(f"note: {note}")
        if samples := summary.get("samples"):
            print(f"steps: {', '.join(f'{name} {count:,}' for name, count in samples.items())}")
        print("\nsettings that differ from the defaults:")
        print_table(["setting", "value", "default"], _differences(run))
        print("\nfiles:")
        print_table(["file", "what"], _files(run))
        return 0


@dataclass(frozen=True)
class Rm(Command):
    """Remove runs and everything in their directories; asks first. A run that is running stays."""

    EXAMPLES: ClassVar[str] = """\
  podium rm NAME
  podium rm RUN-0001 RUN-0002 --yes                     without asking"""

    names: Positional[Annotated[tuple[str, ...], flag("RUN ...")]] = ()
    """Names or paths of runs."""
    yes: Switch = False
    """Do not ask."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Ask, and remove."""
        from podium.runs.directory import find_run, root_flag

        if not self.names:
            raise ConfigError(f"podium rm: which run? `podium runs{root_flag(self.root)}` lists them")
        runs = list({run.path.resolve(): run for run in (find_run(name, self.root) for name in self.names)}.values())
        for run in runs:
            if run.is_held():
                raise ConfigError(f"run {run.name} is running: `podium stop {run.argument}` first")
        if not self.yes and not _confirm(runs):
            print("nothing was removed")
            return 0
        for run in runs:
            run.remove()
            print(f"removed {run.path}")
        return 0


def _confirm(runs: "list[RunDirectory]") -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("podium rm: cannot ask without a terminal; --yes removes without asking")
    answer = input(f"remove {', '.join(str(run.path) for run in runs)}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _differences(run: "RunDirectory") -> list[list[object]]:
    """Settings of a run that are not the defaults, as text; of an algorithm whose code is gone, all that it has."""
    import tomllib

    from podium.core.errors import PodiumError
    from podium.core.fields import config_class, list_fields
    from podium.core.values import format_value

    tree = tomllib.loads(run.experiment_toml.read_text(encoding="utf-8"))
    try:
        fields = list_fields(config_class(tree.get("algorithm", {}).get("name", "")))
    except PodiumError:
        fields = {}
    rows: list[list[object]] = []
    for path, value in _flatten(tree):
        default = fields[path].default if path in fields else None
        if format_value(_plain(value)) != format_value(_plain(default)):
            rows.append([path, format_value(value), format_value(default) if path in fields else "-"])
    return rows


def _flatten(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    top = [
        (key, value) for key, value in tree.items() if not isinstance(value, dict) and key not in ("format", "complete")
    ]
    return top + [
        (f"{section}.{name}", value)
        for section, part in tree.items()
        if isinstance(part, dict)
        for name, value in part.items()
    ]


def _plain(value: Any) -> Any:
    """Lists and tuples alike, as TOML has one kind."""
    return tuple(value) if isinstance(value, list) else value


def _files(run: "RunDirectory") -> list[list[object]]:
    """The parts of the run directory that are there."""
    what = {
        run.experiment_toml: "every setting: `podium train --config` repeats the run",
        run.metrics: "a row for each report",
        run.summary: "the summary",
        run.log: "what was typed and said",
        run.curve: "the learning curve",
        run.checkpoints: "training states",
        run.tensorboard: "event files",
        run.videos: "films",
        run.logs: "of each worker: `podium logs`",
    }
    return [[path, meaning] for path, meaning in what.items() if path.exists()]
