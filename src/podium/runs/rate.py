"""How many steps a second, of late."""

import math

MEMORY_S = 5.0
"""Seconds after which what was measured counts a third."""
LEAST_S = 1.0
"""Less time than this says nothing: the first fragments were collected before anything was learned from them."""


class Rate:
    """Steps by seconds, both of which fade: bursts and pauses between reports even out.

    rate = Rate(now=10.0)
    rate.add(2000, now=12.0)
    rate.value                  # 1000.0
    """

    def __init__(self, now: float) -> None:
        self._began = self._at = now
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
        return self._steps / self._seconds if self._at - self._began >= LEAST_S else None
