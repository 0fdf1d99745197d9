"""`podium envs`, `podium algorithms` and `podium presets`: what there is to train with."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tyro.conf import Positional

from podium.cli.arguments import Command, flag
from podium.cli.tables import print_table
from podium.core.algorithm_configs import ALGORITHMS
from podium.core.presets import list_presets, load_preset
from podium.core.values import format_value


@dataclass(frozen=True)
class Envs(Command):
    """List the environments of the installed libraries."""

    EXAMPLES: ClassVar[str] = """\
  podium envs                                           all
  podium envs cheetah                                   those with it in their name
  podium envs 'gymnax:*'                                those of one library"""

    pattern: Positional[Annotated[str, flag("[PATTERN]")]] = ""
    """Part of a name, or a pattern with * and ?."""

    def run(self) -> int:
        """List."""
        from podium.envs.registry import list_envs

        found = list_envs(self.pattern)
        if not found:
            print(f"no environment matches {self.pattern!r}; `podium doctor` says which libraries are installed")
            return 0
        print_table(["env", "library"], found)
        return 0


@dataclass(frozen=True)
class Algorithms(Command):
    """List the algorithms."""

    EXAMPLES: ClassVar[str] = """\
  podium algorithms
  podium train ppo --help                               every field of one"""

    def run(self) -> int:
        """List."""
        rows = [[name, (kind.__doc__ or "").strip().partition("\n")[0]] for name, kind in ALGORITHMS.items()]
        print_table(["algorithm", "what it is"], [*rows, ["my_module:algorithm", "Your own, by its Python path."]])
        return 0


@dataclass(frozen=True)
class Presets(Command):
    """List the presets, which `podium train` applies by itself where one fits."""

    EXAMPLES: ClassVar[str] = """\
  podium presets
  podium presets cheetah                                those with it in their name
  podium train ppo CartPole-v1 --preset none            train without"""

    pattern: Positional[Annotated[str, flag("[PATTERN]")]] = ""
    """Part of a name."""

    def run(self) -> int:
        """List."""
        names = [name for name in list_presets() if self.pattern.lower() in name.lower()]
        if not names:
            print(f"no preset matches {self.pattern!r}; `podium presets` lists them all")
            return 0
        print_table(["preset", "settings"], [[name, _settings(name)] for name in names])
        print("train with: podium train ALGORITHM ENV (GAME: any Atari game); topology/NAME is --topology NAME")
        return 0


def _settings(name: str) -> str:
    tree = load_preset(name)
    return " ".join(
        f"{section}.{key}={format_value(value).replace(' ', '')}"
        for section, part in tree.items()
        for key, value in part.items()
    )
