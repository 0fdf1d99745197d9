"""Where a slot was when its learner had made an update: what a checkpoint holds of its environments.

Only at staleness 0 is that one snapshot: fragment n is collected by version n, and the next one begins where it ended.
"""

from typing import Generic, TypeVar

EnvSnapshot = TypeVar("EnvSnapshot")


class EnvSnapshots(Generic[EnvSnapshot]):
    """The last two places of a slot, each by the number of updates made; None where its environments cannot tell.

    snapshots = EnvSnapshots(0, snapshot)
    snapshots.add(1, snapshot)                     # before the fragment is sent that the first update is made of
    snapshots.at(1)

    Two, because an actor may have filled the next fragment while its learner still writes a checkpoint. They are
    replaced together, since the learner's thread looks one up while the actor's adds another.
    """

    def __init__(self, updates: int, snapshot: EnvSnapshot | None) -> None:
        self._last = ((updates, snapshot), (updates, snapshot))

    def add(self, updates: int, snapshot: EnvSnapshot | None) -> None:
        """The slot is here, between the fragments of two updates."""
        self._last = (self._last[1], (updates, snapshot))

    def at(self, updates: int) -> EnvSnapshot | None:
        """Where the slot was after so many updates; None if that is not known."""
        return dict(self._last).get(updates)
