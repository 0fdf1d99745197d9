"""What a process may use of its machine."""

import os
import subprocess
import sys

import pytest

from podium.core.machine import count_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes to cores")
def test_a_process_that_is_pinned_counts_its_own_cores_only() -> None:
    program = "import os; os.sched_setaffinity(0, [{core}]); from podium.core.machine import *; print(count_cores())"
    core = min(os.sched_getaffinity(0))
    said = subprocess.run(
        [sys.executable, "-c", program.format(core=core)], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(said.stdout) == 1


def test_without_pinning_all_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert count_cores() == os.cpu_count()
