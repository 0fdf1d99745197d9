"""What this process may use of its machine."""

import os


def count_cores() -> int:
    """Cores that it may run on: under taskset, Slurm or a container's set of cores not all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
