"""Markdown pages as blocks that can be run: fenced code, and the HTML comment above it that says how.

<!-- test: 4_000 steps -->      trainings of the block that follows have so many steps, and one episode at the end
<!-- test: exit 2 -->           its commands end with this exit code
<!-- test: file my.toml -->     it is written to this file
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUN = ("podium ", "python ")
"""Commands of these are run; others in a console block (make, pip, tensorboard) are only shown."""

FENCE = re.compile(
    r"^(?:<!-- test: (?P<how>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where its page has it."""

    language: str
    text: str
    how: str
    line: int

    @property
    def steps(self) -> int | None:
        """How many steps its trainings are cut to."""
        number, _, unit = self.how.partition(" ")
        return int(number) if unit == "steps" else None

    @property
    def exit_code(self) -> int:
        """What its commands must end with."""
        return int(self.how.removeprefix("exit ")) if self.how.startswith("exit ") else 0

    @property
    def file(self) -> str | None:
        """Where its text goes."""
        return self.how.removeprefix("file ") if self.how.startswith("file ") else None

    def commands(self) -> list[str]:
        """What stands behind `$ ` and is to be run, with trainings cut short."""
        typed = [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return [self._cut(command) for command in typed if command.startswith(RUN)]

    def shown(self) -> list[str]:
        """Lines of output that the page shows and that must come, but for those with `...` in them."""
        lines = self.text.splitlines()
        return [line for line in lines if line.strip() and not line.startswith("$ ") and "..." not in line]

    def program(self) -> str:
        """A Python block's code, with trainings cut short."""
        return (
            self.text if self.steps is None else re.sub(r"total_steps=[\d_]+", f"total_steps={self.steps}", self.text)
        )

    def _cut(self, command: str) -> str:
        if self.steps is None or not command.startswith(("podium train", "podium resume")):
            return command
        cut = re.sub(r" --total-steps [\d_e.]+", "", command) + f" --total-steps {self.steps}"
        evaluates = command.startswith("podium train") and "evaluation.episodes" not in command
        return f"{cut} --set evaluation.episodes=1" if evaluates else cut


def read_blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], match["how"] or "", text.count("\n", 0, match.start("text")) + 1)
        for match in FENCE.finditer(text)
    ]


def read_links(page: Path) -> list[str]:
    """Targets of its links and pictures that are files of this repository, without anchors."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    paths = [target.partition("#")[0] for target in found if "://" not in target]
    return [path for path in paths if path]
