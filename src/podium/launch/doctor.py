"""Is this machine ready? Devices, extras, shared memory, and one real training run."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from podium.core.errors import PodiumError
from podium.core.extras import install_line
from podium.core.machine import count_cores

EXTRAS = {
    "envpool": ("envpool",),
    "gymnax": ("gymnax",),
    "box2d": ("box2d", "box2d-py"),
    "atari": ("ale-py",),
    "cluster": ("ray",),
    "dashboard": ("nicegui",),
    "wandb": ("wandb",),
}
"""Extra -> the distributions that provide it: any of them will do."""

SHARED_MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 64 * 2**20
RUN_SECONDS = 5.0


class Finding(NamedTuple):
    """One line of the report. An extra that is not installed is no fault."""

    name: str
    ok: bool
    detail: str


def examine(train: Callable[..., Any]) -> Iterator[Finding]:
    """Findings, each as soon as it is known; `train` is `podium.train`.

    for name, ok, detail in examine(podium.train): ...
    """
    yield examine_devices()
    for extra, distributions in EXTRAS.items():
        yield examine_extra(extra, distributions)
    yield examine_shared_memory(SHARED_MEMORY)
    yield examine_training(train)


def examine_devices() -> Finding:
    """What jax computes on."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return Finding("devices", False, f"jax {jax.__version__} finds none: {str(error).splitlines()[0]}")
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in devices})
    return Finding(
        "devices", True, f"{len(devices)} x {', '.join(kinds)}, {count_cores()} cores, jax {jax.__version__}"
    )


def examine_extra(extra: str, distributions: tuple[str, ...]) -> Finding:
    """Whether an extra is installed, and in which version."""
    for name in distributions:
        try:
            return Finding(extra, True, f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return Finding(extra, True, f"not installed (optional): {install_line(extra)}")


def examine_shared_memory(place: Path) -> Finding:
    """Whether processes can share memory here: a private file can be made, and there is room."""
    if not place.is_dir():
        return Finding("shared memory", True, f"no {place} on this system: memory and tcp are used instead")
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix="podium-doctor-") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("shared memory", False, f"{place} cannot be written: {error.strerror}")
    if free < ENOUGH_BYTES:
        return Finding("shared memory", False, f"{place} has {free / 2**20:.0f} MB free: must be at least 64 MB")
    return Finding("shared memory", True, f"{place}: {free / 2**20:,.0f} MB free, files private ({mode:o})")


def examine_training(train: Callable[..., Any]) -> Finding:
    """Train PPO on CartPole for a few seconds, in a directory that goes away."""
    with tempfile.TemporaryDirectory(prefix="podium-doctor-") as root:
        try:
            run = train(
                "ppo",
                "CartPole-v1",
                seed=0,
                set={"limits.wall_s": RUN_SECONDS, "evaluation.episodes": 0},
                root=root,
                track=(),
                progress=False,
            )
        except PodiumError as error:
            return Finding("training", False, str(error))
        steps, rate = run.summary.get("env_steps") or 0, run.summary.get("steps_per_s") or 0
        status = run.summary.get("status")
    return Finding(
        "training", status == "done" and steps > 0, f"ppo CartPole-v1: {steps:,} steps, {rate:,.0f} a second"
    )
