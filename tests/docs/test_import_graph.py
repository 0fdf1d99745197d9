"""The picture of imports in docs/architecture.md is that of today's code."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "import_graph.py"


def test_the_picture_is_what_the_script_draws():
    drawn = runpy.run_path(str(SCRIPT))["draw"]()
    assert drawn == SCRIPT.with_suffix(".svg").read_text(), "run `python docs/import_graph.py` and commit the picture"
