"""Learning yields to collecting: XLA's threads do, and no others."""

import subprocess
import sys

import pytest

PROGRAM = """
import os
import jax.numpy as jnp
from podium.launch.priority import NICER, put_learning_last

jnp.ones((500, 500)) @ jnp.ones((500, 500))  # XLA has its threads by now
own = os.getpriority(os.PRIO_PROCESS, 0)
lowered = put_learning_last()
all_of_them = [os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")]
assert all_of_them.count(own + NICER) == lowered > 0, (lowered, all_of_them)
assert all_of_them.count(own) == len(all_of_them) - lowered
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux only")
def test_xlas_threads_yield_and_no_others() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
