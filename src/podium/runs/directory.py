"""The directory of a run: what lies where, how a name is given, and how a run is found again."""

import fcntl
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import suggest

LATEST = "latest"
DEFAULT_ROOT = Path("runs")
LOCK, WRITER_LOCK = ".lock", ".writer"
CONTENTS = frozenset(
    {
        "experiment.toml",
        "env.json",
        "metrics.jsonl",
        "summary.json",
        "log.txt",
        "checkpoints",
        "tensorboard",
        "wandb",
        "videos",
        "logs",
        "accounting",
        "workers.json",
        "logged.json",
        "curve.png",
        LOCK,
        WRITER_LOCK,
    }
)
NAME = re.compile(r"\w[\w.+=@,-]{0,199}", re.ASCII)
WRITER_LIMIT_S = 30.0
"""How long a learner waits for one before it to leave: that checkpoints first."""
LOOK_LIMIT_S = 1.0  # how long those who only look may keep a lock from being taken: they need microseconds


class Holder(NamedTuple):
    """The process that writes to a run: its launcher."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host; run directories may lie on a disk that hosts share."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class RunDirectory:
    """One run's files.

    run = RunDirectory.create(Path("runs"), None, "ppo-CartPole-v1")      # runs/ppo-CartPole-v1-0001
    run.experiment_toml.write_text(...)     # first of all: it is what makes the directory a run
    """

    path: Path

    @classmethod
    def create(cls, root: Path, name: str | None, default_stem: str, overwrite: bool = False) -> Self:
        """Make the directory of a new run: `name`, or the default stem with the next free number.

        A name that exists is refused, unless `overwrite` is set and it holds a run.
        """
        if name is not None:
            _check_name(name)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if name is None:
                return cls(_make_numbered(root, default_stem))
            return cls(_make_named(root / name, overwrite))
        except OSError as error:
            raise ConfigError(
                f"cannot make a run directory in {str(root)!r}: {error.strerror}; choose another place with --root"
            ) from None

    @property
    def name(self) -> str:
        """What the run is called: the directory's own name."""
        return self.path.name

    @property
    def argument(self) -> str:
        """What names the run on a command line: `NAME`, or `NAME --root DIR` where it does not lie in `runs`."""
        return f"{shlex.quote(self.name)}{root_flag(self.path.parent)}"

    @property
    def experiment_toml(self) -> Path:
        """The resolved experiment, complete."""
        return self.path / "experiment.toml"

    @property
    def env_json(self) -> Path:
        """What its environment takes and gives: a policy is loaded without the environment."""
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        """A JSON line for each report."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What came out of it, in one JSON object."""
        return self.path / "summary.json"

    @property
    def log(self) -> Path:
        """Each command that started or resumed it, and what it said then."""
        return self.path / "log.txt"

    @property
    def checkpoints(self) -> Path:
        """One directory for each checkpoint, named by its update."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def videos(self) -> Path:
        """Films of episodes."""
        return self.path / "videos"

    @property
    def logs(self) -> Path:
        """One file for each worker."""
        return self.path / "logs"

    @property
    def workers_json(self) -> Path:
        """How the workers are, as their launcher sees them; only where they are processes of their own."""
        return self.path / "workers.json"

    @property
    def logged_json(self) -> Path:
        """What callbacks of the launcher logged last, for its learner to report."""
        return self.path / "logged.json"

    @property
    def accounting(self) -> Path:
        """Actors' and learner's counts of env steps, where they are processes."""
        return self.path / "accounting"

    @property
    def curve(self) -> Path:
        """The learning curve as a picture."""
        return self.path / "curve.png"

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.experiment_toml.is_file()

    @property
    def started(self) -> float:
        """When the run started, in seconds since the epoch: the experiment is written once, then."""
        return self.experiment_toml.stat().st_mtime

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep every other process from writing to this run. The system lets go when this one ends, however it does."""
        with (self.path / LOCK).open("a+") as file:
            if not _lock(file):
                holder = _read_holder(file)
                where = "" if holder is None else f", in {holder}"
                raise ConfigError(f"run {self.name} is still running{where}: stop that first")
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    @contextmanager
    def write_alone(self, limit_s: float = WRITER_LIMIT_S) -> Iterator[None]:
        """For the one process of a held run that writes its metrics and checkpoints, where that is not the holder.

        Waits for one before it, which takes some seconds to notice that its launcher was killed.
        """
        deadline = time.monotonic() + limit_s
        with (self.path / WRITER_LOCK).open("a") as file:
            while not _try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"run {self.name}: its learner of before still runs; end that first "
                        f"(podium ps{root_flag(self.path.parent)})"
                    )
                time.sleep(0.05)
            yield

    def is_held(self) -> bool:
        """Whether a process is in `hold`: the run is running. A process that was killed holds nothing."""
        try:
            with (self.path / LOCK).open() as file:
                return not _try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def holder(self) -> Holder | None:
        """The process in whose `hold` this run is; None if it is not running. Asking keeps nobody from running it.

        if (holder := run.holder()) is not None: print(f"{run.name} runs in {holder}")
        """
        try:
            file = (self.path / LOCK).open()
        except FileNotFoundError:
            return None
        with file:
            return None if _try_lock(file, fcntl.LOCK_SH) else _read_holder(file)

    def remove(self) -> None:
        """Remove the run and all that is in its directory; ConfigError if a process holds it."""
        with self.hold():
            _remove(self.path)

    def require_writable(self, folder: str = "") -> None:
        """Raise ConfigError unless files can be made here, or in a folder of it, which is made.

        `podium resume` asks before it trains, and `podium eval --video` before it plays.
        """
        place = self.path / folder
        probe = place / f".writable-{os.getpid()}"
        try:
            if folder:
                place.mkdir(exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"run directory {str(place)!r} cannot be written: {error.strerror}") from None


def root_flag(root: Path) -> str:
    """` --root DIR` for a command about the runs of `root`; nothing where that is the default."""
    return "" if root.absolute() == DEFAULT_ROOT.absolute() else f" --root {shlex.quote(str(root))}"


def list_runs(root: Path) -> list[RunDirectory]:
    """All runs under `root`, the oldest first; none if there is no such directory."""
    if not root.is_dir():
        return []
    runs = [RunDirectory(path) for path in root.iterdir() if not path.name.startswith(".")]
    return sorted((run for run in runs if run.is_run), key=lambda run: (run.started, run.name))


def find_run(name: str | Path, root: Path) -> RunDirectory:
    """The run called `name` under `root`, or at the path `name`, or the one started last.

    find_run("latest", Path("runs"));  find_run("ppo-CartPole-v1-0003", Path("runs"));  find_run("/data/run", ...)
    """
    if name != LATEST:
        for path in (Path(root, name), Path(name)):
            if RunDirectory(path).is_run:
                return RunDirectory(path)
        if Path(name).is_dir():
            raise ConfigError(f"{str(name)!r} is not a run: it has no experiment.toml")
    runs = list_runs(root)
    if not runs:
        raise ConfigError(
            f"there are no runs in {str(root)!r}; `podium train ppo CartPole-v1{root_flag(root)}` starts one"
        )
    if name == LATEST:
        return runs[-1]
    hint = suggest(Path(name).name, [run.name for run in runs]) or f"; `podium runs{root_flag(root)}` lists them"
    raise ConfigError(f"there is no run {str(name)!r} in {str(root)!r}{hint}")


def find_runs(name: str | Path, root: Path) -> list[RunDirectory]:
    """The run that `find_run` finds, or, where there is none of that name, all whose names begin with it.

    `many` finds many-seed0, many-seed1 and many-seed2. Its seeds come before other runs that begin so.
    """
    if name == LATEST or RunDirectory(Path(root, name)).is_run or RunDirectory(Path(name)).is_run:
        return [find_run(name, root)]
    begin = [run for run in list_runs(root) if run.name.startswith(str(name))]
    seeds = [run for run in begin if re.fullmatch(r"-seed\d+", run.name.removeprefix(str(name)))]
    found = sorted(
        seeds or begin, key=lambda run: [int(n) if n.isdecimal() else n for n in re.split(r"(\d+)", run.name)]
    )
    return found or [find_run(name, root)]


def _lock(file: IO[str]) -> bool:
    """Lock it exclusively; False if another process has done so. A shared lock is only somebody who looks."""
    deadline = time.monotonic() + LOOK_LIMIT_S
    while not _try_lock(file, fcntl.LOCK_EX):
        if not _try_lock(file, fcntl.LOCK_SH) or time.monotonic() > deadline:
            return False
    return True


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(file: IO[str]) -> Holder | None:
    """Who wrote the file; None in the instant before it has, or after it has wiped it."""
    file.seek(0)
    pid, _, host = file.read().strip().partition(" ")
    return Holder(int(pid), host) if pid.isdigit() else None


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: must be a plain name of letters, digits and . _ + = @ , - (no slashes)")
    if name == LATEST:
        raise ConfigError(f"--name {name!r}: means the newest run; choose another name")


def stem(experiment: Experiment) -> str:
    """What a run without a name is called after: `ppo-CartPole-v1`."""
    return re.sub(r"[^\w.-]+", "-", f"{experiment.algorithm.name}-{experiment.env.id}")


def _make_numbered(root: Path, stem: str) -> Path:
    stem = re.sub(r"[^\w.+=@,-]+", "-", stem, flags=re.ASCII).strip("-.") or "run"
    pattern = re.compile(re.escape(stem) + r"-(\d+)")
    taken = [int(match[1]) for path in root.iterdir() if (match := pattern.fullmatch(path.name))]
    number = max(taken, default=0) + 1
    while True:
        path = root / f"{stem}-{number:04d}"
        try:
            path.mkdir()
        except FileExistsError:  # another process took the number first: mkdir decides who has it
            number += 1
        else:
            return path


def require_free(root: Path, name: str | None, overwrite: bool) -> None:
    """Raise ConfigError for a name that `RunDirectory.create` would refuse: before anything is prepared."""
    if name is not None:
        _check_name(name)
        _refuse_taken(root / name, overwrite)


def _refuse_taken(path: Path, overwrite: bool) -> bool:
    """Whether something is there that may be replaced."""
    exists = path.exists() or path.is_symlink()
    if exists and not overwrite:
        raise ConfigError(f"--name {path.name!r}: {str(path)!r} exists; choose another name, or --overwrite to lose it")
    return exists


def _make_named(path: Path, overwrite: bool) -> Path:
    exists = _refuse_taken(path, overwrite)
    if exists:
        if not _looks_like_run(path):
            raise ConfigError(f"--overwrite: {str(path)!r} is not a run directory, so it stays; choose another --name")
        with RunDirectory(path).hold():
            _remove(path)
    path.mkdir()
    return path


def _looks_like_run(path: Path) -> bool:
    """Whether it holds a run, or a run's beginnings: one killed before it had written its experiment."""
    if path.is_symlink() or not path.is_dir():
        return False
    return RunDirectory(path).is_run or all(entry.name in CONTENTS for entry in path.iterdir())


def _remove(path: Path) -> None:
    """Move away first, so that a kill leaves no half of a run under its name."""
    doomed = path.with_name(f".removed-{path.name}-{os.getpid()}")
    path.rename(doomed)
    shutil.rmtree(doomed)
