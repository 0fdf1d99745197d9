"""How many steps a second, of late."""

import math

MEMORY_S = 5.0
"""Seconds after which what was measured counts a third."""
LEAST_S = 0.05
"""Less time than this says nothing."""


class Rate:
    """Steps by seconds, both of which fade: bursts and pauses between reports even out.

    rate = Rate(now=10.0)
    rate.add(500, now=10.5)
    rate.value                  # 1000.0
    """

    def __init__(self, now: float) -> None:
        self._at = now
        self._steps = self._seconds = 0.0

    def add(self, steps: int, now: float) -> None:
        """So many steps have been made since the last call, or the start."""
        passed, self._at = now - self._at, now
        fade = math.exp(-passed / MEMORY_S)
        self._steps = fade * self._steps + steps
        self._seconds = fade * self._seconds + passed

    @property
    def value(self) -> float | None:
        """None until there is time to divide by."""
        return self._steps / self._seconds if self._seconds > LEAST_S else None
