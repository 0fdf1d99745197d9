"""`podium doctor` and `podium bench`: is this machine ready, and how fast is it."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, Suppress

from podium.cli.arguments import Command, flag
from podium.core.errors import ConfigError

BENCHMARKS = ("throughput", "off_policy", "pong", "es", "protocol", "topology", "learning")


@dataclass(frozen=True)
class Doctor(Command):
    """Check this machine: devices, extras, shared memory, and a real training run of 5 s."""

    EXAMPLES: ClassVar[str] = """\
  podium doctor                                         exit code 1 if something is wrong"""

    def run(self) -> int:
        """Examine, line by line as results come."""
        import podium.api as api
        from podium.launch.doctor import examine

        healthy = True
        for name, ok, detail in examine(api.train):
            print(f"{'ok  ' if ok else 'FAIL'}  {name:<16} {detail}", flush=True)
            healthy = healthy and ok
        print("ready" if healthy else "not ready: see the lines with FAIL")
        return 0 if healthy else 1


@dataclass(frozen=True)
class Bench(Command):
    """Run a benchmark of the source checkout, steps/s or returns; further arguments go to it."""

    EXAMPLES: ClassVar[str] = """\
  podium bench throughput                               PPO beside Stable-Baselines3, Sample Factory, RLlib, rejax
  podium bench off_policy                               SAC and TD3 beside Stable-Baselines3 and SBX
  podium bench pong                                     IMPALA from pixels beside Sample Factory
  podium bench es                                       evolution strategies beside evosax
  podium bench protocol                                 moving data between processes, beside ZeroMQ and Ray
  podium bench topology                                 one process, many, and served; what a ring of slots gains
  podium bench learning                                 presets over seeds beside published returns
  podium bench throughput -- --help                     the benchmark's own arguments"""

    benchmark: Positional[Annotated[str, flag("|".join(BENCHMARKS))]] = ""
    """Which."""
    rest: Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Become the benchmark."""
        if self.benchmark not in BENCHMARKS:
            raise ConfigError(f"podium bench {self.benchmark}".rstrip() + f": must be one of {', '.join(BENCHMARKS)}")
        script = find_benchmark(self.benchmark)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(script), *self.rest])


def find_benchmark(name: str) -> Path:
    """The script in the checkout that podium was installed from, or in the working directory."""
    for checkout in (Path(__file__).parents[3], Path.cwd()):
        script = checkout / "benchmarks" / f"{name}.py"
        if script.is_file() and (checkout / "pyproject.toml").is_file():
            return script
    raise ConfigError(
        f"podium bench {name}: there is no benchmarks/{name}.py; benchmarks need a source checkout:"
        " clone the repository and run it there"
    )
