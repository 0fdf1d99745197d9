"""A film of a MuJoCo policy on a machine without a screen."""

import ctypes.util
from pathlib import Path

import pytest

import podium
from launch import commands
from launch.commands import tiny


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="no libEGL to draw with: apt-get install libegl1")
def test_mujoco_is_filmed_without_a_screen(tmp_path: Path) -> None:
    short, root = tiny(env__wrappers=["time_limit(20)"]), tmp_path / "runs"
    podium.train("ppo", "Hopper-v5", name="hop", total_steps=64, set=short, root=root, preset="none", progress=False)
    # In a process of its own: MuJoCo chooses how to draw when it is imported.
    filmed = commands.podium("eval", "hop", "--episodes", "1", "--video", cwd=tmp_path, DISPLAY="", WAYLAND_DISPLAY="")
    assert filmed.returncode == 0, filmed.stderr
    (video,) = (tmp_path / "runs" / "hop" / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000
