"""Films of episodes, as mp4."""

import itertools
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from podium.core.files import drafted

LIMIT_S = 120.0
"""How long ffmpeg may take to finish after the last frame."""


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float = 30.0) -> Path:
    """Write frames uint8[H, W, 3] to an mp4 that browsers play; whole, or not at all.

    write_video(run.videos / "episode-0.mp4", frames, fps=50)

    An odd height or width is padded by one row or column, because the format halves colours in both.
    """
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError(f"{path.name}: a video needs at least one frame")
    path.parent.mkdir(parents=True, exist_ok=True)
    with drafted(path) as draft:
        _encode(draft, _alike(itertools.chain([first], frames), path.name), fps)
    return path


def _encode(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    """Pipe raw frames into the ffmpeg binary of imageio-ffmpeg.

    Its own writer runs Python between fork and exec, which may hang once jax has started threads.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    first = next(frames)
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{first.shape[1]}x{first.shape[0]}", "-r", str(fps)]
    target = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart"]
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, "-i", "-", *target, str(path)]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=complaints, process_group=0)
        assert process.stdin is not None
        try:
            with process.stdin:
                for frame in itertools.chain([first], frames):
                    process.stdin.write(frame.data)
            status = process.wait(LIMIT_S)
        except BrokenPipeError:  # ffmpeg has gone: its complaint says more than ours
            status = process.wait(LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(LIMIT_S)
        if status:
            complaints.seek(0)
            raise OSError(f"ffmpeg could not write {path.name}: {complaints.read().decode(errors='replace').strip()}")


def _alike(frames: Iterable[np.ndarray], name: str) -> Iterator[np.ndarray]:
    """The frames, padded, as long as each is like the first."""
    first = None
    for frame in frames:
        first = frame if first is None else first
        if frame.shape != first.shape or frame.shape[2:] != (3,) or frame.dtype != np.uint8:
            raise ValueError(f"{name}: a frame is {_describe(frame)}, must be like the first, {_describe(first)}")
        yield _pad_to_even(frame)


def _pad_to_even(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _describe(frame: np.ndarray) -> str:
    return f"{frame.dtype}{list(frame.shape)}"
