"""How far actors may run ahead of the learner: what `topology.staleness` means to each part that asks.

schedule = make_schedule(staleness=1)
schedule.credits(slots=4)                          # fragments that these slots may have out
schedule.may_begin(slot.version, newest)           # an actor asks, before a slot's next fragment
schedule.too_old(fragment.version, newest=7)       # a learner asks, before it trains version 7
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from podium.protocol.schema import Version


@dataclass(frozen=True)
class Schedule(ABC):
    """What actors may begin, and what a learner takes. With `any_age`, which replay has, nothing is too old for it."""

    ahead: int  # versions
    any_age: bool = False
    in_turns: ClassVar[bool]
    """Whether actors and learner take turns, so that no clock decides what is computed, or in which batch."""

    def credits(self, slots: int, parts: int = 1) -> int:
        """Fragments that these slots may have out, where each sends those of a version in so many parts."""
        return slots * (self.ahead * parts + 1)

    def too_old(self, updates: Any, newest: int) -> Any:
        """Which of the steps that these versions chose a learner after `newest` updates leaves out."""
        return newest - updates > (math.inf if self.any_age else self.ahead)

    def outlived(self, version: Version, newest: Version) -> bool:
        """Whether it is of a learner that died, and is refused for that."""
        return not self.any_age and version.incarnation < newest.incarnation

    def accepts(self, version: Version, newest: Version) -> bool:
        """Whether a learner at `newest` takes what this version chose."""
        return not self.outlived(version, newest) and not self.too_old(version.update, newest.update)

    @abstractmethod
    def may_begin(self, played: Version | None, newest: Version | None) -> bool:
        """Whether a slot that has a buffer may begin a fragment, after one of version `played`."""

    @abstractmethod
    def number(self, fragment: int, newest: Version | None) -> int:
        """The number of a slot's next fragment: `fragment` have been made before."""

    @abstractmethod
    def place(self, slot: int, arrived: int) -> int:
        """Where a slot's fragment goes in a batch that so many have arrived for."""


class Synchronous(Schedule):
    """Staleness 0: version n collects fragment n of every slot, and the learner waits for all of them."""

    in_turns = True

    def may_begin(self, played: Version | None, newest: Version | None) -> bool:
        return newest is not None and (played is None or newest > played)  # credit may come before parameters

    def number(self, fragment: int, newest: Version | None) -> int:
        assert newest is not None
        return newest.update

    def place(self, slot: int, arrived: int) -> int:
        return slot


class Bounded(Schedule):
    """Actors go on while they have credit, and the learner takes what comes first."""

    in_turns = False

    def may_begin(self, played: Version | None, newest: Version | None) -> bool:
        return True

    def number(self, fragment: int, newest: Version | None) -> int:
        return fragment

    def place(self, slot: int, arrived: int) -> int:
        return arrived


def make_schedule(staleness: int, any_age: bool = False) -> Schedule:
    """The schedule of a run with this `topology.staleness`."""
    return (Bounded if staleness else Synchronous)(staleness, any_age)
