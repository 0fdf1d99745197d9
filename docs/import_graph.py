"""Draws docs/import_graph.svg: which package of `src/podium` imports which, in the layers of pyproject.toml.

python docs/import_graph.py          # after imports have changed; tests/docs compares the picture with the code
"""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "import_graph.svg"
WIDTH, BOX, HEIGHT, STEP = 900, 130, 34, 84


def read_layers() -> list[list[str]]:
    """Packages by layer, from the top, as import-linter checks them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("podium.") for name in layer.split("|")] for layer in layers]


def find_imports(packages: set[str]) -> set[tuple[str, str]]:
    """Pairs of packages of which the first imports the second."""
    edges = set()
    source = ROOT / "src" / "podium"
    for path in sorted(source.rglob("*.py")):
        package = path.relative_to(source).parts[0].removesuffix(".py")
        found = {name.split(".")[1] for name in imported(path) if name.startswith("podium.")}
        edges |= {(package, other) for other in found - {package} if {package, other} <= packages}
    return edges


def imported(path: Path) -> set[str]:
    """Names of the modules that a module imports; `from podium import api` is `podium.api`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{alias.name}." for alias in node.names}
    return names


def draw() -> str:
    """The picture: a box for each package, a line for each pair."""
    layers = read_layers()
    places = {
        name: (WIDTH * (2 * column + 1) / (2 * len(layer)), STEP * row + STEP / 2)
        for row, layer in enumerate(layers)
        for column, name in enumerate(layer)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {STEP * len(layers)}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{STEP * len(layers)}" fill="white"/>',
    ]
    for user, used in sorted(find_imports(set(places))):
        (x, y), (u, v) = places[user], places[used]
        bend = 0 if v - y <= STEP else (60 if x <= WIDTH / 2 else -60) * (1 + (v - y) / STEP / 3)
        curve = f"M{x:.0f} {y:.0f} Q{(x + u) / 2 + bend:.0f} {(y + v) / 2:.0f} {u:.0f} {v - HEIGHT / 2:.0f}"
        lines.append(
            f'<path d="{curve}" fill="none" stroke="#5b7a99" stroke-opacity="0.6">'
            f"<title>{user} imports {used}</title></path>"
        )
    for name, (x, y) in places.items():
        lines.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" rx="6" '
            f'fill="#eef3f8" stroke="#33506e"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="15">{name}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
