"""Settings of JAX that a run wants, made before its first computation."""

import os
from pathlib import Path

import jax


def configure() -> None:
    """Keep compiled programs between runs, and let computations on the CPU run in the calling thread.

    The second start of an experiment then compiles nothing; JAX_COMPILATION_CACHE_DIR moves the cache.
    """
    if not jax.config.values["jax_compilation_cache_dir"]:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "podium" / "xla"))
    # An actor waits for each of its small computations anyway: handing them to another thread trebles their time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
