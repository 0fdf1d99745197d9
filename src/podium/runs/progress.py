"""How far a run is, on the screen: a bar in a terminal, one line in a notebook, lines in a log.

What stays on the screen stays in the run's log.txt too.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from podium.runs.results import format_return

LINE_EVERY_S = 5.0
NOTEBOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Report:
    """What is shown."""

    step: int
    total_steps: int
    elapsed_s: float
    episode_return: float | None
    steps_per_s: float | None
    note: str
    wall_s: float = 0.0
    wall_limit_s: float | None = None

    @property
    def part(self) -> float:
        """How much of the run is done, by the limit that is nearer: steps or `limits.wall_s`."""
        by_time = self.wall_s / self.wall_limit_s if self.wall_limit_s else 0.0
        return min(1.0, max(self.step / self.total_steps, by_time))

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at this speed, or until `limits.wall_s` if that is sooner."""
        by_steps = max(self.total_steps - self.step, 0) / self.steps_per_s if self.steps_per_s else None
        if self.wall_limit_s is None:
            return by_steps
        by_time = max(self.wall_limit_s - self.wall_s, 0.0)
        return by_time if by_steps is None else min(by_steps, by_time)

    def fields(self) -> dict[str, Any]:
        """Each part as text; empty where it is not known yet."""
        return {
            "steps": f"{self.step:,} steps",
            "reward": "" if self.episode_return is None else f"return {format_return(self.episode_return)}",
            "speed": "" if self.steps_per_s is None else f"{self.steps_per_s:,.0f} steps/s",
            "left": "" if self.left_s is None else f"{format_time(self.left_s)} left",
            "note": self.note,
        }

    def __str__(self) -> str:
        percent = f"{int(100 * self.part + 1e-9):3d}%"
        elapsed = {"elapsed": f"{format_time(self.elapsed_s)} elapsed"}
        return "  ".join(filter(None, [percent, *(elapsed | self.fields()).values()]))


def format_time(seconds: float) -> str:
    """As a clock writes it.

    >>> format_time(75), format_time(7384)
    ('1:15', '2:03:04')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def announce(line: str) -> None:
    """Say something on the screen where no progress is shown: before it begins, or after its end."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


class Display(Protocol):
    """One of the three ways to show a report."""

    def show(self, report: Report) -> None:
        """Show it, if it is time to."""
        ...

    def say(self, line: str) -> None:
        """Print a line that stays."""
        ...

    def stop(self, last: Report | None) -> None:
        """Leave the last report on the screen."""
        ...


class Progress:
    """The progress of one run.

    with Progress(total_steps=100_000) as progress:
        progress.say("fused: CartPole-v1 is a JAX environment")
        progress.update(2048, episode_return=21.5, steps_per_s=40_000)
    """

    def __init__(
        self, total_steps: int, enabled: bool = True, log: Path | None = None, wall_limit_s: float | None = None
    ) -> None:
        self._total_steps = total_steps
        self._wall_limit_s = wall_limit_s
        self._enabled = enabled
        self._log = log
        self._display: Display | None = None
        self._started = time.monotonic()
        self._last: Report | None = None

    def update(
        self,
        step: int,
        episode_return: float | None = None,
        steps_per_s: float | None = None,
        note: str = "",
        wall_s: float = 0.0,
    ) -> None:
        """Where the run is now; `wall_s` from its start. Cheap enough to be called after every update."""
        if self._display is None:
            return
        elapsed = time.monotonic() - self._started
        limits = self._total_steps, self._wall_limit_s
        self._last = last = Report(step, limits[0], elapsed, episode_return, steps_per_s, note, wall_s, limits[1])
        self._show(lambda display: display.show(last))

    def say(self, line: str) -> None:
        """Print a line above the bar, unless progress is disabled, and keep it in the log."""
        self.log(line)
        self._show(lambda display: display.say(line))

    def log(self, line: str) -> None:
        """Append a line to the log alone, with its time."""
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._display = _choose_display(self._total_steps) if self._enabled else None
        return self

    def __exit__(self, *_: object) -> None:
        self._show(lambda display: display.stop(self._last))
        self._display = None

    def _show(self, do: Callable[[Display], None]) -> None:
        """Show something, unless the screen is gone (`podium train ... | head`): that never ends a run."""
        if self._display is None:
            return
        try:
            do(self._display)
        except OSError as error:
            self._display = None
            self.log(f"nothing more is shown, because the output is closed ({error.strerror}); training goes on")


class Bar:
    """A bar on a terminal, redrawn by a thread of rich four times a second."""

    def __init__(self, total_steps: int) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.BarColumn(bar_width=None),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[steps]}", style="default"),
            progress.TextColumn("[bold green]{task.fields[reward]}"),
            progress.TextColumn("[cyan]{task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("[magenta]{task.fields[left]}"),
            progress.TextColumn("{task.fields[note]}", style="dim"),
            console=Console(stderr=True),
            refresh_per_second=4,
            expand=True,
        )
        start = Report(0, total_steps, 0.0, None, None, "compiling")
        self._task = self._bar.add_task("", total=total_steps, **start.fields())
        self._bar.start()
        self._due = Due(0.1)

    def show(self, report: Report) -> None:
        """Hand it to rich, at most ten times a second."""
        if self._due():
            self._bar.update(self._task, completed=report.part * report.total_steps, **report.fields())

    def say(self, line: str) -> None:
        """Print above the bar."""
        self._bar.console.print(line, markup=False, highlight=False)

    def stop(self, last: Report | None) -> None:
        """Draw the last report and give the terminal back."""
        if last is not None:
            self._bar.update(self._task, completed=last.part * last.total_steps, **last.fields())
        self._bar.stop()


class Lines:
    """A line about every five seconds, for logs and pipes."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._due = Due(LINE_EVERY_S)
        self._shown: Report | None = None

    def show(self, report: Report) -> None:
        """Write it if the last was long enough ago."""
        if self._due():
            self._shown = report
            self._write(str(report))

    def say(self, line: str) -> None:
        """Write the line."""
        self._write(line)

    def stop(self, last: Report | None) -> None:
        """Write the last report unless it was written already."""
        if last is not None and last is not self._shown:
            self._write(str(last))


class NotebookLine:
    """One line of a notebook's output, changed in place. (rich needs ipywidgets for its bar there.)"""

    def __init__(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._handle: Any = display(_PlainText("starting"), display_id=True)
        self._due = Due(NOTEBOOK_EVERY_S)

    def show(self, report: Report) -> None:
        """Change the line, at most twice a second."""
        if self._due():
            self._handle.update(_PlainText(str(report)))

    def say(self, line: str) -> None:
        """Print into the cell's output."""
        print(line)

    def stop(self, last: Report | None) -> None:
        """Leave the last report."""
        if last is not None:
            self._handle.update(_PlainText(str(last)))


class _PlainText:
    """What a notebook shows as it is: its representation is the text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Due:
    """Says yes at most once in a period, and the first time.

    due = Due(5.0)
    while True:
        if due(): print("still here")
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._period_s
        return True


def _choose_display(total_steps: int) -> Display:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookLine()
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return Bar(total_steps)
    return Lines(lambda line: print(line, file=sys.stderr, flush=True))
