"""Each extra of pyproject.toml, installed from the checkout into a clean virtual environment of its own, and used once.

What an extra forgets to bring is missing here. The environment of `make test` has the requirements of all extras.
The base requirements are installed once: each environment starts with hard links to them and adds its extra with pip.

Left out: `cuda` and `tpu`, whose wheels are gigabytes and need their hardware, and `dev`, which `make test` uses.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LEFT_OUT = {"cuda", "tpu", "dev"}
LIMIT_S = 300

TRAIN = ["podium", "train", "ppo"]
SHORT = ["--total-steps", "500", "--preset", "none", "--quiet", "--set", "evaluation.episodes=0"]
SMALL = ["env.num_envs=2", "algorithm.fragment_length=16", "algorithm.minibatch_size=32", "algorithm.num_epochs=1"]
USES: dict[str, list[str]] = {
    "envpool": [*TRAIN, "envpool:CartPole-v1", *SHORT, *SMALL],
    "gymnax": [*TRAIN, "gymnax:CartPole-v1", *SHORT, *SMALL],
    "box2d": [*TRAIN, "gymnasium:LunarLander-v3", *SHORT, *SMALL],
    "atari": [*TRAIN, "gymnasium:ALE/Pong-v5", *SHORT, *SMALL, "env.wrappers=[atari]"],
    "wandb": [*TRAIN, "CartPole-v1", "--track", "wandb", *SHORT, *SMALL],
    "playground": ["python", "-c", "import mujoco_playground"],
    "cluster": ["python", "-c", "import ray"],
    "dashboard": ["python", "-c", "import nicegui"],
    "s3": ["python", "-c", "import s3fs"],
    "gcs": ["python", "-c", "import gcsfs"],
}
"""By extra, a command that needs it: a training run where Podium uses the extra so, else the import."""

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"].keys() - LEFT_OUT)


@pytest.fixture(scope="session")
def base() -> Iterator[Path]:
    """A virtual environment with the base requirements only; it and those beside it are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="podium-extras-") as directory:
        path = Path(directory) / "base"
        run([sys.executable, "-m", "venv", str(path)])
        install(path, ".")
        yield path


@pytest.fixture
def clean(base: Path) -> Iterator[Path]:
    """A virtual environment with what `base` has; pip replaces files and never writes into them, so links are safe."""
    path = base.parent / "clean"
    run([sys.executable, "-m", "venv", "--without-pip", str(path)])
    shutil.rmtree(path / "lib")
    shutil.copytree(base / "lib", path / "lib", symlinks=True, copy_function=os.link)
    yield path
    shutil.rmtree(path)


def test_every_extra_has_a_use():
    assert set(EXTRAS) <= USES.keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_brings_what_it_needs(extra: str, clean: Path, tmp_path: Path):
    if extra == "envpool" and sys.platform != "linux":
        pytest.skip("EnvPool has wheels for Linux only")
    install(clean, f".[{extra}]")
    run([str(clean / "bin/python"), "-m", "pip", "check"])
    program, *arguments = USES[extra]
    run([str(clean / "bin" / program), *arguments], cwd=tmp_path)


def install(venv: Path, what: str) -> None:
    """Install from the checkout with the versions of constraints.txt."""
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", "constraints.txt", what], cwd=REPO)


def run(command: list[str], cwd: Path | None = None) -> None:
    """Run it as a user's shell would, without the settings that make tests find this checkout; print what it wrote."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["WANDB_MODE"] = "offline"
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
