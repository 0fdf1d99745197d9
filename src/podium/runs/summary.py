"""summary.json: what came out of a run, in one object with fixed keys."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from podium.core.files import is_full, write_whole

Status = Literal["running", "done", "stopped", "failed", "interrupted"]

PACKAGES = {
    "podium": "podium-rl",
    **{name: name for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnasium")},
    **{name: name for name in ("mujoco", "envpool", "gymnax", "ale-py", "ray")},
}


@dataclass(frozen=True)
class EpisodeReturn:
    """Of the last training episodes: a fifth of them, at least 10 and at most 100 (`recorder.window`)."""

    mean: float | None = None
    std: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Samples:
    """Where every valid env step went. Senders count what they produced, receivers the rest."""

    produced: int = 0
    trained: int = 0
    stale: int = 0
    lost: int = 0
    undone: int = 0
    in_flight: int = 0
    unknown_workers: int = 0
    """Incarnations that were lost with their host: what they did after they last reported is in no count."""

    @property
    def unexplained(self) -> int:
        """What the two counts differ by: must be 0."""
        return self.produced - self.trained - self.stale - self.lost - self.undone - self.in_flight


@dataclass(frozen=True)
class Staleness:
    """Versions between the parameters that acted and those that were trained on the result."""

    mean: float = 0.0
    max: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything in summary.json, in its order.

    write_summary(run.path, Summary(status="done", env_steps=100_352, ..., versions=versions()))
    """

    status: Status
    limit: str | None = None
    """The field of `limits` that ended it, if one did."""
    env_steps: int
    updates: int
    wall_s: float
    compile_s: float
    steps_per_s: float | None
    episode_return: EpisodeReturn
    eval_return: float | None = None
    """Mean of the greedy episodes at the end."""
    eval_std: float | None = None
    """Their sample standard deviation; None of a single one."""
    eval_episodes: int | None = None
    """How many they were."""
    samples: Samples
    staleness: Staleness
    restarts: Mapping[str, int]
    mode: str
    env_library: str
    seed: int
    restart_causes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def to_json(self) -> dict[str, Any]:
        """As plain values. What is not finite becomes None, because JSON has no NaN."""
        values = asdict(self)
        values["samples"]["unexplained"] = self.samples.unexplained
        return _finite(values)


def write_summary(directory: Path, summary: Summary) -> Path:
    """Write summary.json whole or not at all: a reader never sees half of it, except on a full disk."""
    return _write(directory, summary.to_json())


def amend_summary(directory: Path, samples: Samples | None = None, **changes: Any) -> None:
    """Put in what is known only later: a score, or, once all processes have ended, the account and the restarts."""
    summary = (read_summary(directory) or {}) | changes
    if samples is not None:
        summary["samples"] = asdict(samples) | {"unexplained": samples.unexplained}
    _write(directory, _finite(summary))


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a run, given its directory or the file; None if it has none yet, or none that is whole."""
    file = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide a run's numbers; imports none of them."""
    found = {"python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write(directory: Path, values: Mapping[str, Any]) -> Path:
    path, text = directory / "summary.json", json.dumps(values, indent=2, allow_nan=False) + "\n"
    try:
        write_whole(path, text)
    except OSError as error:
        if not is_full(error) or not path.exists():
            raise
        # In place: a full disk has no room for a second file, but must not keep a run that failed as `running`.
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
    return path


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
