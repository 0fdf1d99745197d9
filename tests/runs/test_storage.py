"""Storage on a disk and in a real S3 server (moto, on loopback): whole files only, and one writer at a time."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import ConfigError, FencedError
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.mirror import Mirror, fetch_checkpoint, fetch_files, last_claim, stored_checkpoints
from podium.runs.storage import Storage

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket in a server of this machine."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    port = 20_000 + os.getpid() % 20_000
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
                patch.setenv(name, value)
            Storage("s3://bucket")._files.mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/stored"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def save(run: RunDirectory, update: int, value: float) -> None:
    with Checkpoints(run.checkpoints, keep=2) as checkpoints:
        checkpoints.save(update, {"w": np.full(3, value, np.float32)}, {"env_steps": update})


def restore(run: RunDirectory) -> tuple[int, float]:
    restored = Checkpoints(run.checkpoints).restore({"w": np.zeros(3, np.float32)})
    return restored.update, float(restored.tree["w"][0])


def test_a_file_is_written_read_listed_removed_and_created_once(url: str) -> None:
    storage = Storage(url).folder("run")
    storage.probe()
    assert storage.read("logs/actor-0.log") is None
    storage.write("logs/actor-0.log", b"one")
    storage.write("logs/actor-0.log", b"two")
    assert storage.read("logs/actor-0.log") == b"two"
    assert storage.create("claims/0", b"first")
    assert not storage.create("claims/0", b"second")
    assert storage.read("claims/0") == b"first"
    assert storage.names() == ["claims/0", "logs/actor-0.log"]
    assert storage.names("logs") == ["logs/actor-0.log"]
    storage.remove("logs")
    storage.remove("logs")
    assert storage.names() == ["claims/0"]


def test_a_run_goes_on_elsewhere_from_the_newest_checkpoint_that_was_stored_whole(url: str, tmp_path: Path) -> None:
    storage, here, there = Storage(url), RunDirectory(tmp_path / "here"), RunDirectory(tmp_path / "there")
    here.path.mkdir()
    here.metrics.write_text("a row\n")
    with Mirror(storage, here, incarnation=0, period_s=0.05):
        save(here, 10, 1.0)
        save(here, 20, 2.0)
    assert stored_checkpoints(storage) == [(0, 10), (0, 20)]
    storage.write("checkpoints/00000000-000000000030/leaves/half", b"of a checkpoint: its learner died")
    assert fetch_checkpoint(storage, there) == (0, 20)
    fetch_files(storage, there)
    assert restore(there) == (20, 2.0)
    assert there.metrics.read_text() == "a row\n"
    # One that was altered on its way is not taken, and the one before it is.
    (name,) = [name for name in storage.names("checkpoints/00000000-000000000020/header") if name.endswith("metadata")]
    storage.write(name, b"{}")
    assert fetch_checkpoint(storage, there) == (0, 10)
    assert restore(there) == (10, 1.0)


def test_an_older_learner_is_fenced_out_and_its_checkpoints_give_way(url: str, tmp_path: Path) -> None:
    storage, old, new = Storage(url), RunDirectory(tmp_path / "old"), RunDirectory(tmp_path / "new")
    with Mirror(storage, old, incarnation=0, period_s=60) as first:
        save(old, 10, 1.0)
        first.send()
        assert fetch_checkpoint(storage, new) == (0, 10)
        with Mirror(storage, new, incarnation=1, period_s=60) as second:
            assert last_claim(storage) == 1
            save(old, 20, 2.0)  # it was only cut off, and does not know
            with pytest.raises(FencedError, match="incarnation 1 has taken over"):
                first.send()
            first._error = FencedError("as its thread would have met it")
            save(new, 15, 3.0)
            second.send()
            with pytest.raises(FencedError, match="has begun elsewhere"):
                Mirror(storage, old, incarnation=1)
    assert stored_checkpoints(storage) == [(1, 10), (1, 15)]
    assert fetch_checkpoint(storage, RunDirectory(tmp_path / "third")) == (1, 15)


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot be used"):
        Storage(f"file://{tmp_path}/file").probe()
    with pytest.raises(ConfigError, match="file://, s3:// and gs:// are known"):
        Storage("nowhere://bucket")
