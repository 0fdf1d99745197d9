"""A worker's record in a program, which its incarnations hold one after another: what the supervisor remembers of
it."""

import time
from dataclasses import dataclass, field

from podium.orchestrator.program import Group
from podium.orchestrator.spawner import Handle
from podium.orchestrator.status import WorkerState


@dataclass(eq=False)
class WorkerRecord:
    """`WorkerRecord(group, 3)` is that of actor-3."""

    group: Group
    index: int
    incarnation: int = 0
    handle: Handle | None = None  # of the incarnation that holds it now
    state: WorkerState = "starting"
    since: float = field(default_factory=time.time)
    started: float = 0.0
    left_at: float | None = None  # when the incarnation was first seen to have withdrawn
    verdict: str | None = None  # why it was killed
    terminated: bool = False
    retry_at: float | None = None  # when the next incarnation begins
    deaths: int = 0  # since there was progress
    restarts: int = 0
    finished: bool = False

    @property
    def name(self) -> str:
        """`actor-3`, as its log is called."""
        return f"{self.group.role}-{self.index}"

    @property
    def identity(self) -> tuple[str, int, int]:
        """Role, index and incarnation, as the directory knows it."""
        return self.group.role, self.index, self.incarnation

    def begin(self, now: float) -> None:
        """Forget what was true of the last incarnation only."""
        self.started = now
        self.left_at = self.verdict = self.retry_at = None
        self.terminated = False
        self.turn("starting")

    def await_place(self, now: float) -> None:
        """It waits for room: that is neither a death nor a start that takes too long."""
        self.started = now
        self.turn("pending")

    def turn(self, state: WorkerState) -> None:
        """Change the state, and note when."""
        if state != self.state:
            self.state, self.since = state, time.time()
