"""Films hold every frame, also of odd size."""

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from podium.runs.video import write_video


@pytest.mark.parametrize(("height", "width"), [(64, 96), (63, 95)])
def test_every_frame_is_in_the_film(tmp_path: Path, height: int, width: int) -> None:
    frames = (np.full((height, width, 3), 8 * i, np.uint8) for i in range(25))
    path = write_video(tmp_path / "videos" / "episode.mp4", frames, fps=25)
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert count == 25
    assert seconds == pytest.approx(1.0, abs=0.05)
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path)]
    decode += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(decode, check=True, capture_output=True, timeout=60).stdout
    shown = np.frombuffer(raw, np.uint8).reshape(25, 64, 96, 3)
    np.testing.assert_allclose(shown.mean(axis=(1, 2, 3)), 8 * np.arange(25), atol=3)
    assert [file.name for file in path.parent.iterdir()] == ["episode.mp4"]


def test_no_frames_and_changing_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        write_video(tmp_path / "a.mp4", [])
    with pytest.raises(ValueError, match=r"uint8\[8, 8, 3\], must be like the first, uint8\[16, 16, 3\]"):
        write_video(tmp_path / "a.mp4", [np.zeros((16, 16, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)])
    with pytest.raises(ValueError, match=r"float64\[16, 16, 3\]"):
        write_video(tmp_path / "a.mp4", [np.zeros((16, 16, 3))])
    assert list(tmp_path.iterdir()) == []


def test_what_ffmpeg_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ffmpeg could not write .*\S"):
        write_video(tmp_path / "a.mp4", [np.zeros((16, 16, 3), np.uint8)], fps=-1)
    assert list(tmp_path.iterdir()) == []
