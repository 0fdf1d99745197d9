"""Settings of JAX that a run wants, made before its first computation."""

import os
import warnings
from pathlib import Path

import jax

from podium.algorithms.minibatches import MAX_BLOCKS
from podium.core.config import Experiment
from podium.core.machine import count_cores


def configure(experiment: Experiment) -> None:
    """Keep compiled programs between runs, run small computations where they are asked for, use every core.

    The second start of an experiment then compiles nothing; JAX_COMPILATION_CACHE_DIR moves the cache.
    """
    if not jax.config.values["jax_compilation_cache_dir"]:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "podium" / "xla"))
    # One that was killed as it wrote an entry, or has not finished, leaves half of it: it is compiled again.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    # An actor waits for each of its small computations anyway: handing them to another thread trebles their time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _split_cpu(experiment.topology.devices or min(count_cores(), MAX_BLOCKS))


def _split_cpu(devices: int) -> None:
    """One CPU device for each core, so that a fused run uses them all: XLA spreads only large operations.

    Too late where the program has computed something already; then the run has the devices that there are.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:
        return
