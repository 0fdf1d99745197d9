"""What every part of the configuration tree is."""

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
