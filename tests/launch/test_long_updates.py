"""A signal is answered within seconds, also while a program is computed that hears none."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.commands import LIMIT_S, environment

LONG = """
import pathlib, sys
import jax
from podium.launch.interrupts import interruptible
from podium.runs.progress import Progress

def compute(i):
    return jax.lax.while_loop(lambda i: i >= 0, lambda i: (i + 1) % 7, i)   # for ever

try:
    with Progress(1) as progress, interruptible(progress, lambda: pathlib.Path("left").touch()):
        program = jax.jit(compute).lower(0).compile()
        print("ready", flush=True)
        jax.block_until_ready(program(0))
except KeyboardInterrupt:
    sys.exit("heard, so not in the program")
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_never_ends_does_not_keep_a_signal_waiting(signum: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LONG], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signum)
        if signum == signal.SIGINT:  # Ctrl-C alone waits for the update
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signum)
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, said
        assert b"stopped without a checkpoint" in said
        assert (tmp_path / "left").exists()
    finally:
        process.kill()
