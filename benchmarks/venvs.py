"""A virtual environment for each peer: what one library pins must not decide what another one may use.

    python = ensure("sb3")    # .venvs/sb3/bin/python, made on the first call (minutes), found on the next (no time)
    subprocess.run([python, script("sb3"), "--workload", "halfcheetah", "--seconds", "25"], check=True)

The pins of a peer are `benchmarks/peers/PEER.txt`. Also a command: `python benchmarks/venvs.py sb3 rejax`.
"""

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podium.core.errors import ConfigError, PodiumError

BENCHMARKS = Path(__file__).resolve().parent
PINS = BENCHMARKS / "peers"
VENVS = BENCHMARKS.parent / ".venvs"

# Fetching torch over a slow line takes minutes; longer than this, it hangs.
INSTALL_LIMIT_S = 1800.0


class InstallError(PodiumError):
    """A peer's environment could not be made; the message ends with what pip said last."""


def peers() -> list[str]:
    """Names that `ensure` takes: `["evosax", "rejax", "rllib", "sample_factory", "sb3", "sbx"]`."""
    return sorted(path.stem for path in PINS.glob("*.txt"))


def script(peer: str, work: str = "ppo") -> Path:
    """What the peer's Python runs; were it `PEER.py`, `import rejax` would find the script instead of the library."""
    return PINS / f"{peer}_{work}.py"


def ensure(peer: str) -> Path:
    """The Python of the peer's own environment, which is made when it is missing or its pins have changed."""
    if peer not in peers():
        raise ConfigError(f"peer = {peer!r} is not known; one of {', '.join(peers())} would be")
    pins = PINS / f"{peer}.txt"
    stamp = VENVS / peer / "pins.sha256"
    python = VENVS / peer / "bin" / "python"
    wanted = hashlib.sha256(sys.version.encode() + pins.read_bytes()).hexdigest()
    with _alone(peer):
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        print(f"{peer}: making its virtual environment (once, some minutes)", file=sys.stderr, flush=True)
        _run(peer, [sys.executable, "-m", "venv", "--clear", str(VENVS / peer)])
        for requirements in _in_order(pins.read_text()):
            _run(peer, [str(python), "-m", "pip", "install", "--progress-bar=off", *requirements])
        # Written last: an installation that was interrupted is begun again.
        stamp.write_text(wanted)
    return python


def _in_order(pins: str) -> Iterator[list[str]]:
    """The arguments of each pip call.

    torch goes first and alone: resolved together with the rest, the CUDA build and its gigabytes may win.
    """
    requirements = [line.split("#")[0].strip() for line in pins.splitlines()]
    torch = [line for line in requirements if line.startswith("torch==")]
    others = [line for line in requirements if line and line not in torch]
    if torch:
        yield torch
    yield [*torch, *others]


@contextmanager
def _alone(peer: str) -> Iterator[None]:
    """Refuse a second installer of the same environment; the kernel frees the lock if the first one is killed."""
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{peer}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{peer}: another process is making its environment; start again when it is done"
            raise InstallError(message) from None
        yield


def _run(peer: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{peer}: no environment after {INSTALL_LIMIT_S:.0f} s: {' '.join(command)}") from None
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise InstallError(f"{peer}: no environment, exit code {done.returncode}: {' '.join(command)}\n{last}")


if __name__ == "__main__":
    try:
        for name in sys.argv[1:] or peers():
            print(ensure(name))
    except PodiumError as error:
        sys.exit(str(error))
