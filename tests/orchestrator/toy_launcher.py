"""A launcher to be killed: supervises toy workers in the directory that it is given, until it is gone."""

import sys
import time
from pathlib import Path

from orchestrator.supervision import QUICK
from orchestrator.toy_workers import group, program
from podium.orchestrator.backends import local


def main(root: Path, lease_s: float) -> None:
    """`python -m orchestrator.toy_launcher DIRECTORY LEASE_S`."""
    learner = group("learner", "learn", until=str(root / "never"), checkpoint=str(root / "checkpoint"))
    workers = program(learner, group("actor", "work"), group("deaf", "deaf"))
    with local(workers, root / "logs", lease_s=lease_s, limits=QUICK, status=root / "status.json") as supervisor:
        supervisor.start()
        while supervisor.outcome is None:
            supervisor.tick()
            time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
