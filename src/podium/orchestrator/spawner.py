"""What a back end has to do: start a worker somewhere, and give a handle on it. Everything else is the supervisor's."""

from abc import ABC, abstractmethod

from podium.orchestrator.program import Group


class Handle(ABC):
    """One incarnation of a worker. No method but `wait` waits for anything."""

    name: str  # actor-3
    pid: int | None  # None until it is known, where the worker runs elsewhere

    @property
    def pending(self) -> bool:
        """Whether it waits for a place to run: asked for, not started. Its clock does not run yet."""
        return False

    @abstractmethod
    def poll(self) -> int | None:
        """Its exit code (negative: a signal), or None while it lives."""

    @abstractmethod
    def terminate(self) -> None:
        """Ask it to stop."""

    @abstractmethod
    def kill(self) -> None:
        """End it, whatever it is doing. Harmless if it has ended."""

    @abstractmethod
    def wait(self, timeout: float) -> int | None:
        """Its exit code, or None if it still lives after `timeout` seconds."""

    @abstractmethod
    def failure(self) -> str | None:
        """The error, traceback or last words of one that has failed, wherever its log is."""

    def account(self) -> bytes:
        """What is known of the accounting of one that has ended, where its launcher cannot read its files."""
        return b""


class Spawner(ABC):
    """Starts workers. It also sees to it that they join the run's directory."""

    host: str  # where those run of which nothing is known yet

    @abstractmethod
    def start(self, group: Group, index: int, incarnation: int) -> Handle:
        """Start an incarnation of a worker of `group`. Raises OSError if the system refuses."""
