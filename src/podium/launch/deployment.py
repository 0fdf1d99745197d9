"""Where a run's workers are, and where its files are kept: this machine and its disk, or a cluster and storage."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from podium.core.errors import ConfigError
from podium.core.files import write_whole
from podium.runs.directory import RunDirectory
from podium.runs.mirror import FILES, START, fetch_checkpoint, fetch_files
from podium.runs.storage import Storage

LOCAL = "local"


@dataclass(frozen=True)
class Deployment:
    """`on` is `local`, `ray` (a cluster of this machine) or the HOST:PORT of a Ray cluster; `storage` is a URL."""

    on: str = LOCAL
    storage: str | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether workers may be on several hosts."""
        return self.on != LOCAL

    def open_storage(self, run: str) -> Storage | None:
        """The run's folder in storage, if it has one."""
        return None if self.storage is None else Storage(self.storage).folder(run)

    def write(self, run: RunDirectory) -> None:
        """Record it in the run's directory, so that the run is found again."""
        write_whole(run.path / "deployment.json", msgspec.json.encode(asdict(self)))


HERE = Deployment()


def read_deployment(run: RunDirectory) -> Deployment:
    """Where a run was started."""
    path: Path = run.path / "deployment.json"
    return msgspec.json.decode(path.read_bytes(), type=Deployment) if path.exists() else HERE


def is_stored(run: object) -> bool:
    """Whether this names a run in storage: a URL, or a folder that a run's learner has claimed."""
    return isinstance(run, str) and ("://" in run or (Path(run) / "claims").is_dir())


def bring(url: str, root: Path) -> RunDirectory:
    """A run from storage to a directory of this host: its settings, its metrics, its newest checkpoint."""
    parent, _, name = url.rstrip("/").rpartition("/")
    storage, run = Storage(parent).folder(name), RunDirectory(root / name)
    if storage.read("experiment.toml") is None:
        raise ConfigError(f"{url!r} is not a run: it has no experiment.toml")
    if run.is_run and read_deployment(run).storage != parent:
        raise ConfigError(f"{url!r}: {str(run.path)!r} is another run; choose another place with --root")
    fetch_files(storage, run, (*START, *FILES))
    fetch_checkpoint(storage, run)
    return run
