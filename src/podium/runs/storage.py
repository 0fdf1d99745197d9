"""Files of a run in a place that every host reaches, named by a URL: an object store, or a disk that hosts share.

storage = Storage("s3://bucket/runs").folder("ppo-CartPole-v1-0001")
storage.probe()                                       # raises ConfigError, in one line, before anything starts
storage.write("summary.json", b"...")
storage.create("claims/00000003", b"")                # False: it was there already
"""

import contextlib
import secrets
from pathlib import Path
from typing import Any

from podium.core.errors import ConfigError, StorageError

EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}


class Storage:
    """A folder at a URL. Every call is one request or a few; none waits longer than the library's own limits."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        import fsspec  # takes a third of a second

        self.url = url.rstrip("/")
        kind = url.partition("://")[0] if "://" in url else "file"
        try:
            # Listings are not cached: other hosts write here.
            self._files, self._root = fsspec.url_to_fs(self.url, **(options or {}), use_listings_cache=False)
        except ImportError:
            extra = EXTRAS.get(kind)
            line = f"pip install -e '.[{extra}]'" if extra else f"install fsspec's library for {kind}"
            raise ConfigError(f"--storage {url}: needs a library that is not installed: {line}") from None
        except ValueError as error:
            raise ConfigError(f"--storage {url}: {error}; file://, s3:// and gs:// are known") from None

    def folder(self, name: str) -> "Storage":
        """A folder in this one."""
        inner = object.__new__(Storage)
        inner.url, inner._files, inner._root = f"{self.url}/{name}", self._files, f"{self._root}/{name}"
        return inner

    def probe(self) -> None:
        """Raise ConfigError unless this can be written, read, listed and removed, and creates a file only once."""
        name, data = f"probe-{secrets.token_hex(6)}", secrets.token_bytes(16)
        try:
            works = self.create(name, data) and self.read(name) == data and name in self.names()
            once = not self.create(name, data)
            self.remove(name)
        except StorageError as error:
            raise ConfigError(f"--storage {self.url}: cannot be used: {error}") from None
        if not works or not once:
            what = "does not keep two writers apart" if works else "does not give back what was written"
            raise ConfigError(f"--storage {self.url}: {what}; use another one")

    def write(self, name: str, data: bytes) -> None:
        """Put a whole file, in place of the one before."""
        with _told(f"write {name}"):
            self._make_parent(name)
            self._files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Put a file that is not there yet; False, and nothing is changed, if it is. Of two writers, one succeeds."""
        with _told(f"create {name}"):
            self._make_parent(name)
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        """A whole file; None if there is none."""
        with _told(f"read {name}"):
            try:
                return self._files.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def upload(self, path: Path, name: str) -> None:
        """Put a file of this host's disk."""
        with _told(f"write {name}"):
            self._make_parent(name)
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Get a file to this host's disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _told(f"read {name}"):
            self._files.get_file(self._path(name), str(path))

    def names(self, folder: str = "") -> list[str]:
        """All files below a folder, by name."""
        with _told(f"list {folder or 'it'}"):
            try:
                found = self._files.find(self._path(folder))
            except FileNotFoundError:
                return []
        return sorted(str(path).removeprefix(self._root).lstrip("/") for path in found)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all in it; harmless if there is none."""
        with _told(f"remove {name}"), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _make_parent(self, name: str) -> None:
        if "file" in self._files.protocol:
            self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)


@contextlib.contextmanager
def _told(what: str):
    """Turn what libraries of object stores raise into one line: OSError, or an error of their own."""
    try:
        yield
    except (StorageError, FileNotFoundError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise StorageError(f"cannot {what}: {reason[:200]}") from error
