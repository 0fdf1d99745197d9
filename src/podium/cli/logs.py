"""`podium logs`: what the workers of a run wrote."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from tyro.conf import Positional

from podium.cli.arguments import Command, flag, read_whole
from podium.cli.tables import print_table
from podium.core.errors import ConfigError
from podium.core.imports import suggest

if TYPE_CHECKING:
    from podium.runs.directory import RunDirectory
    from podium.runs.tail import Follower

LOOK_EVERY_S = 0.2
LAST_WIDTH = 80
SHOWN = 10
RUN_LOG = "log.txt"


@dataclass(frozen=True)
class Logs(Command):
    """Show what a worker of a run wrote; without a worker, which logs there are, or log.txt of a run in one process."""

    EXAMPLES: ClassVar[str] = """\
  podium logs NAME                                      the logs of a run, with their last lines
  podium logs NAME actor-2 -n 100                       the last 100 lines of one
  podium logs NAME learner-0 -f                         and those that come, until the run ends or Ctrl-C
  podium logs NAME -f                                   of all workers, each line after its worker"""

    name: Positional[Annotated[str, flag("[RUN]", "(default: latest)")]] = "latest"
    """Name or path of a run."""
    worker: Positional[Annotated[str | None, flag("[WORKER]")]] = None
    """As `podium ps` calls it: actor-2, learner-0, ..."""
    follow: Annotated[bool, tyro.conf.arg(aliases=["-f"], help_behavior_hint="")] = False
    """Go on with the lines that come."""
    lines: Annotated[str, tyro.conf.arg(metavar="N", aliases=["-n"], help_behavior_hint="(default: 20)")] = "20"
    """How many of the last lines."""
    root: Annotated[Path, flag("DIR", "(default: runs)")] = Path("runs")
    """Directory of runs."""

    def run(self) -> int:
        """Show."""
        from podium.runs.directory import find_run
        from podium.runs.tail import last_lines

        count = read_whole("--lines", self.lines)
        if count is None or count < 0:
            raise ConfigError(f"--lines = {count}: must be at least 0")
        run = find_run(self.name, self.root)
        logs = find_logs(run)
        if self.worker is not None and self.worker not in logs:
            names = ", ".join([*logs][:SHOWN]) + (", ..." if len(logs) > SHOWN else "")
            there_are = f"; there are: {names}" if logs else "; it has none yet"
            raise ConfigError(f"run {run.name} has no log of {self.worker!r}{suggest(self.worker, logs) or there_are}")
        worker = RUN_LOG if RUN_LOG in logs else self.worker
        if self.follow:
            return follow_logs(run, worker, count)
        if worker is not None:
            for line in last_lines(logs[worker], count):
                print(line)
            return 0
        return list_logs(run, logs)


def find_logs(run: "RunDirectory") -> dict[str, Path]:
    """The log of each worker that has one, in order of role and index: actor-2 comes before actor-10.

    Workers that share one process have none: then it is the run's own, log.txt.
    """

    def order(path: Path) -> tuple[str, int, str]:
        role, _, index = path.stem.rpartition("-")
        return role, int(index) if index.isdecimal() else 0, index

    if not run.logs.is_dir() and run.log.is_file():
        return {RUN_LOG: run.log}
    return {path.stem: path for path in sorted(run.logs.glob("*.log"), key=order)}


def list_logs(run: "RunDirectory", logs: dict[str, Path]) -> int:
    """A table of them."""
    from podium.runs.tail import last_lines

    if not logs:
        print(f"run {run.name} has no logs yet")
        return 0
    rows = [
        [worker, _size(path.stat().st_size), "".join(last_lines(path, 1))[:LAST_WIDTH]] for worker, path in logs.items()
    ]
    print_table(["worker", "size", "last line"], rows)
    return 0


def follow_logs(run: "RunDirectory", worker: str | None, count: int) -> int:
    """Print lines as they come, of one worker or of all, until the run has ended; Ctrl-C is how one leaves."""
    followers: dict[str, Follower] = {}
    try:
        while True:
            running = run.holder() is not None  # asked first: what was written before the end is still read
            lines = _read_news(run, worker, followers, count)
            if not running:
                lines += [(name, line) for name, follower in followers.items() for line in follower.rest()]
            for name, line in lines:
                print(line if worker else f"{name:<12} {line}")
            sys.stdout.flush()
            if not running:
                print(f"run {run.name} has ended", file=sys.stderr)
                return 0
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        return 0


def _read_news(
    run: "RunDirectory", worker: str | None, followers: "dict[str, Follower]", count: int
) -> list[tuple[str, str]]:
    """New lines and whose they are. A log that appears while the others are followed is read from its beginning."""
    from podium.runs.tail import Follower

    first = not followers
    news = []
    for name, path in find_logs(run).items():
        if worker not in (None, name):
            continue
        if name not in followers:
            followers[name] = Follower(path, count if first else sys.maxsize)
        news += [(name, line) for line in followers[name].read()]
    return news


def _size(size: int) -> str:
    """
    >>> _size(900), _size(2_500_000)
    ('900 B', '2.5 MB')
    """
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
