"""What every part of the configuration tree is."""

import math
from dataclasses import dataclass
from typing import ClassVar

from podium.core.errors import ConfigError


@dataclass(frozen=True)
class Section:
    """A part of the tree that knows its own name, so that errors can say `env.num_envs`."""

    SECTION: ClassVar[str]

    def require(self, name: str, holds: bool, right: str) -> None:
        """Raise ConfigError naming the field, its value and what would be right, unless it holds."""
        if not holds:
            raise ConfigError(f"{self.SECTION}.{name} = {getattr(self, name)!r}: must be {right}")

    def require_finite(self, *names: str) -> None:
        """The same for numbers that must be neither nan nor inf; None is no number."""
        for name in names:
            value = getattr(self, name)
            self.require(name, value is None or math.isfinite(value), "a finite number")
