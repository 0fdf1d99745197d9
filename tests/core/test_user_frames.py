"""What a user's own module raises is one line with the user's own frame, and exit code 2."""

from pathlib import Path

import pytest

from podium.cli.main import main
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.user_frames import describe_raised, refusing


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "own_lacks_a_library",
            "import numpy\n\nimport no_such_library_here\n",
            "raised ModuleNotFoundError: No module named 'no_such_library_here' (own_lacks_a_library.py, line 3)",
        ),
        (
            "own_misspelt",
            "import numpy\ndef make(:\n    pass\n",
            "raised SyntaxError: invalid syntax (own_misspelt.py, line 2)",
        ),
        (
            "own_divides",
            "def ratio():\n    return 1 / 0\n\nratio()\n",
            "raised ZeroDivisionError: division by zero (own_divides.py, line 2, in ratio)",
        ),
        (
            "own_asks_a_library",
            "import json\njson.loads('{')\n",
            "(own_asks_a_library.py, line 2)",
        ),
    ],
)
@pytest.mark.parametrize("order", ["algorithm", "env"])
def test_a_module_that_cannot_be_imported_is_one_line_with_its_own_frame(
    name: str,
    text: str,
    told: str,
    order: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"{name}_{order}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = [f"{name}:make", "X"] if order == "algorithm" else ["ppo", f"{name}:make", "--dry-run"]
    assert main(["train", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    field = "algorithm.name" if order == "algorithm" else "env.id"
    assert line.startswith(f"error: {field} = '{name}:make': importing {name} raised ")
    assert line.endswith(told.replace(".py", f"_{order}.py"))


def test_a_module_that_is_not_there_is_told_apart_from_one_that_lacks_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no module 'not_here_at_all' here or installed"):
        load_path("not_here_at_all.part:make", "env.id")


def test_long_and_broken_texts_stay_one_line() -> None:
    said = describe_raised(ValueError("a\n  b" + "c" * 1000))
    assert said.startswith("raised ValueError: a bccc")
    assert len(said) < 400
    assert describe_raised(ValueError()) == "raised ValueError"


def test_what_podium_raises_passes_as_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^seed = -1: must be at least 0$"), refusing("network.factory"):
        raise ConfigError("seed = -1: must be at least 0")
