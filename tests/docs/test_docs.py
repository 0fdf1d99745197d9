"""The README and docs keep their word: commands run, code runs, links lead somewhere, no setting is missing."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, read_blocks, read_links

from launch.commands import quick_flags
from podium.core.algorithm_configs import ALGORITHMS
from podium.core.fields import config_class, list_fields
from podium.runs.summary import Summary, read_summary

LIMIT_S = 300
SHARED = {"appo": "impala"}
"""Algorithms that are told about on another one's page."""
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory like examples/, so that the examples' modules can be named."""
    shutil.copytree(
        ROOT / "examples", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs", "__pycache__")
    )
    return tmp_path


def run(command: str | list[str], place: Path, exit_code: int = 0) -> str:
    """Run as a user would, and return what was printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "XLA_FLAGS": quick_flags(), "PATH": path}
    shell = isinstance(command, str)
    done = subprocess.run(command, shell=shell, cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == exit_code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def run_block(block: Block, place: Path) -> None:
    """Run one block of a page, whatever it is."""
    if block.file is not None:
        (place / block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        script = place / f"line_{block.line}.py"
        script.write_text(block.program(), encoding="utf-8")
        run([sys.executable, script.name], place)
    elif block.language == "console":
        printed = "".join(run(command, place, block.exit_code) for command in block.commands())
        for line in block.shown():
            assert line in printed, f"line {block.line}: the page shows {line!r}, which was not printed:\n{printed}"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_python_block_of_a_page_runs(name: str, place: Path) -> None:
    for block in read_blocks(ROOT / name):
        run_block(block, place)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    missing = [link for link in read_links(page) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithms_page_and_those_it_points_to_name_every_field(algorithm: str) -> None:
    page = ROOT / f"docs/algorithms/{SHARED.get(algorithm, algorithm)}.md"
    others = [page.parent / link for link in read_links(page) if "/" not in link and link.endswith(".md")]
    said = "".join(page.read_text(encoding="utf-8") for page in (page, *others))
    fields = [path for path in list_fields(config_class(algorithm)) if path.startswith("algorithm.")]
    assert [path for path in fields if f"`{path.removeprefix('algorithm.')}`" not in said] == []


def test_configuration_page_names_every_other_field() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    fields = [path for path in list_fields(config_class("ppo")) if not path.startswith("algorithm.")]
    assert [path for path in fields if f"`{path}`" not in page] == []


def test_runs_page_names_every_key_of_the_summary() -> None:
    page = (ROOT / "docs/runs.md").read_text(encoding="utf-8")
    assert [field.name for field in dataclasses.fields(Summary) if f"`{field.name}" not in page] == []


def test_own_algorithm_page_shows_the_examples_as_they_are() -> None:
    shown = [block.text for block in read_blocks(ROOT / "docs/own-algorithm.md") if block.language == "python"]
    names = "reinforce.py", "clipped_sac.py"
    assert shown == [(ROOT / "examples" / name).read_text(encoding="utf-8") for name in names]


def test_reinforce_example_learns_cartpole(place: Path) -> None:
    command = "podium train reinforce:algorithm CartPole-v1 --total-steps 100_000 --seed 1 --name r"
    run(f"{command} --set topology.staleness=0 --quiet", place)
    summary = read_summary(place / "runs/r")
    assert summary is not None
    assert summary["episode_return"]["mean"] >= 150


def test_quickstart_trains_and_plays(place: Path) -> None:
    printed = run([sys.executable, "quickstart.py", "4_000"], place)
    assert "played three episodes" in printed


def test_notebook_runs_from_top_to_bottom(place: Path) -> None:
    run("jupyter execute notebook.ipynb", place)
