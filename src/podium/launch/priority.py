"""Who goes first where learner and actors share the cores: the actors, within what `topology.staleness` allows.

Simulators' threads sleep between steps of their batch. One that wakes up behind a gradient step keeps its whole batch
waiting, while another core has nothing to do; a gradient step that is put off keeps nobody waiting.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

THREADS = "tf_XLAEigen"
"""What XLA calls those that compute."""
NICER = 10
"""By so much they yield: about a tenth of a core that somebody else wants."""


def put_learning_last() -> int:
    """Lower the priority of this process's XLA threads; says how many there are. Linux only: elsewhere none.

    Computations that are asked for one at a time, such as a small policy's, run in the thread that asks.
    """
    if sys.platform != "linux":
        return 0
    lower, lowered = min(os.getpriority(os.PRIO_PROCESS, 0) + NICER, 19), 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that has just ended
            if (task / "comm").read_text().strip() == THREADS:
                os.setpriority(os.PRIO_PROCESS, int(task.name), lower)
                lowered += 1
    return lowered
