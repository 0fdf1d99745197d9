"""Metrics of episodes, such as `is_success`: their means over the episodes of a report."""

from collections.abc import Sequence

import numpy as np

from podium.core.config import IS_SUCCESS

PREFIX = "env/"


class Outcomes:
    """What the environments of a run tell at the ends of episodes, under the names of their spec.

    outcomes = Outcomes(("is_success",))
    outcomes.means(np.array([[1.0], [0.0], [np.nan]]))       # {"env/is_success": 0.5}
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = names
        self._episodes = 0
        self._seen: set[str] = set()

    def means(self, numbers: np.ndarray | None) -> dict[str, float]:
        """Of the episodes [n, k] of a report; what none of them has as a finite number is left out."""
        if numbers is None or not len(numbers):
            return {}
        self._episodes += len(numbers)
        finite = np.isfinite(numbers)
        found = {
            name: float(np.mean(numbers[finite[:, i], i], dtype=np.float64))
            for i, name in enumerate(self._names)
            if finite[:, i].any()
        }
        self._seen |= found.keys()
        return {PREFIX + name: mean for name, mean in found.items()}

    def notes(self) -> tuple[str, ...]:
        """A line for each name that no episode had, unless it was only looked for."""
        if not self._episodes:
            return ()
        missing = [name for name in self._names if name not in self._seen and name != IS_SUCCESS]
        return tuple(f"env.metrics: no episode had {name!r} in its last info" for name in missing)
