"""Help teaches: every field, with default and meaning, and it needs no jax."""

import subprocess
import sys
from pathlib import Path

import pytest

from podium.cli.main import COMMANDS, main
from podium.core.fields import config_class, list_fields

LINES = [["--help"], ["train", "--help"], ["train", "ppo", "CartPole-v1", "--help"], ["presets"]]
LINES += [[name, "--help"] for name in COMMANDS if name != "train"]


def test_help_does_not_import_jax() -> None:
    code = (
        "import sys\nfrom podium.cli.main import main\n"
        f"for line in {LINES!r}:\n    assert main(line) == 0, line\n"
        "heavy = {'jax', 'flax', 'optax', 'gymnasium', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([], ["--help"], ["help"]):
        assert main(line) == 0
        out = capsys.readouterr().out
        assert [name for name in COMMANDS if f"\n  {name} " not in out] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: podium {name}" in out
    examples = out.partition("\nexamples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith("  podium ") for line in examples)


@pytest.mark.parametrize("columns", ["60", "200"])
def test_train_ppo_help_lists_every_field_with_default_and_meaning(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["train", "ppo", "--help"]) == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    for path, field in list_fields(config_class("ppo")).items():
        assert f"    {path} = " in out
        assert field.meaning.split(". ")[0].split("-")[0].strip() in words, path


def test_help_with_an_environment_shows_its_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPole-v1", "-h"]) == 0
    out = capsys.readouterr().out
    assert "fields of ppo with preset ppo/CartPole-v1" in out
    assert "env.num_envs = 8 " in out


def test_help_of_ones_own_algorithm_lists_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_help_module.py").write_text(
        "from dataclasses import dataclass\nfrom podium.core.algorithm_configs import AlgorithmConfig\n"
        "@dataclass(frozen=True)\nclass Mine(AlgorithmConfig):\n    '''Mine.'''\n"
        "    baseline: float = 0.5\n    '''Subtracted from returns.'''\n"
        "def algorithm(config: Mine, experiment, spec): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["train", "own_help_module:algorithm", "--help"]) == 0
    out = capsys.readouterr().out
    assert "algorithm.baseline = 0.5 Subtracted from returns." in " ".join(out.split())
    assert "algorithm.name = own_help_module:algorithm" in out


def test_help_of_an_unknown_algorithm_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "pppo", "--help"]) == 2
    line = "error: algorithm.name = 'pppo': no such algorithm; did you mean 'ppo' or 'appo'?"
    assert capsys.readouterr().err.startswith(line)
