"""Set before any test imports jax: eight devices on one host, and programs that compile quickly, once a session."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest

# Tests compile much and compute little: leave out what makes compiled code fast. XLA's older way to emit a fusion takes
# half the time of the one that users have.
FLAGS = {
    "xla_force_host_platform_device_count": "8",
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
}
given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([given, *(f"--{name}={to}" for name, to in FLAGS.items() if name not in given)])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Commands that tests start find what others have compiled. Set it to a directory that stays for quick repetitions.
CACHE = "JAX_COMPILATION_CACHE_DIR"
own_cache = None if CACHE in os.environ else tempfile.mkdtemp(prefix="podium-compiled-")
os.environ.setdefault(CACHE, own_cache or "")
# By default jax keeps only what took a second to compile, but a suite is made of many small programs.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Remove this session's compiled programs; workers of pytest-xdist have inherited theirs and leave them."""
    if own_cache is not None:
        shutil.rmtree(own_cache)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """In CI everything that a test needs is installed, so a skip is a failure."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
