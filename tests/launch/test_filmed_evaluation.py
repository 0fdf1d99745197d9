"""A film of a MuJoCo policy on a machine without a screen."""

import ctypes.util
from pathlib import Path

import pytest

from launch.commands import flags, podium, tiny


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="no libEGL to draw with: apt-get install libegl1")
def test_mujoco_is_filmed_without_a_screen(tmp_path: Path) -> None:
    short = flags(tiny(env__wrappers='["time_limit(20)"]'))
    trained = podium("train", "ppo", "Hopper-v5", "--name", "hop", "--total-steps", "64", *short, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    filmed = podium("eval", "hop", "--episodes", "1", "--video", cwd=tmp_path, DISPLAY="", WAYLAND_DISPLAY="")
    assert filmed.returncode == 0, filmed.stderr
    (video,) = (tmp_path / "runs" / "hop" / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000
