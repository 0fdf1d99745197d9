"""The doctor tells sick from healthy."""

import os
import re
import tempfile
from pathlib import Path

import pytest

import podium
from podium.core.errors import TrainingError
from podium.envs.registry import RESERVED
from podium.launch.doctor import EXTRAS, examine_devices, examine_extra, examine_shared_memory, examine_training


def test_devices_are_named() -> None:
    name, ok, detail = examine_devices()
    assert (name, ok) == ("devices", True)
    assert "cpu" in detail


def test_an_installed_extra_has_its_version_and_a_missing_one_its_command() -> None:
    assert examine_extra("wire", ("no-such-package", "numpy")).detail.startswith("numpy 2")
    missing = examine_extra("wandb", ("no-such-package",))
    assert missing == ("wandb", True, "not installed (optional): `pip install -e '.[wandb]'` in Podium's checkout")


def test_no_extra_is_recommended_that_nothing_here_uses() -> None:
    assert not EXTRAS.keys() & RESERVED.keys()


def test_shared_memory_is_written_privately_and_left_clean(tmp_path: Path) -> None:
    finding = examine_shared_memory(tmp_path)
    assert finding.ok
    assert finding.detail.endswith("files private (600)")
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_shared_memory_is_not_sick(tmp_path: Path) -> None:
    assert examine_shared_memory(tmp_path / "none").ok


def test_shared_memory_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    place = tmp_path if os.geteuid() else Path("/proc")  # where even root makes no file
    assert "cannot be written" in examine_shared_memory(place).detail
    assert not examine_shared_memory(place).ok


def test_a_failing_run_is_a_fault_with_its_message() -> None:
    def train(*_: object, **__: object) -> None:
        raise TrainingError("loss is nan")

    assert examine_training(train) == ("training", False, "loss is nan")


def test_its_own_run_trains_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, ok, detail = examine_training(podium.train)
    assert (name, ok) == ("training", True), detail
    steps = int(re.fullmatch(r"ppo CartPole-v1: ([\d,]+) steps, [\d,]+ a second", detail)[1].replace(",", ""))
    assert steps > 1000
    assert list(tmp_path.iterdir()) == []
