"""Draws `architecture.svg`: packages in the bands of the import contracts, and the imports between them.

python docs/generate_architecture.py [--check]
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = pathlib.Path(__file__).with_name("architecture.svg")
WIDTH, BAND, BOX = 1180, 78, 30
"""Pixels: of the picture, of a band from top to top, and of a box from top to bottom."""
STYLE = (
    "text{font:12px system-ui,sans-serif;text-anchor:middle;dominant-baseline:middle;fill:#1d2733}"
    "rect{fill:#eef3f8;stroke:#5b7a99}path{fill:none;stroke:#5b7a99;stroke-opacity:.28}"
    ".title{font-weight:600;text-anchor:start}"
)


def bands(package: str) -> list[list[str]]:
    """Names of the packages and modules of each band, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract.get("containers") == [package]:
            return [re.findall(r"\w+", layer) for layer in contract["layers"]]
    raise LookupError(package)


def imports(package: str) -> collections.Counter[tuple[str, str]]:
    """Imports between parts of a package, counted by importing and imported part."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for path in sorted((ROOT / package).rglob("*.py")):
        part = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for alias in node.names:
                names = f"{node.module}.{alias.name}".split(".")
                if names[0] == package and names[1] != part:
                    found[part, names[1]] += 1
    return found


def drawn(package: str, top: int) -> tuple[list[str], int]:
    """Elements of the picture for one package, and the height that they take."""
    rows = bands(package)
    places = {}
    boxes = []
    for number, row in enumerate(rows):
        y = top + 30 + number * BAND
        step = WIDTH / len(row)
        for place, name in enumerate(row):
            width = min(step - 8, 150)
            x = step * (place + 0.5)
            places[name] = (x, y)
            boxes.append(
                f'<rect x="{x - width / 2:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="4"/>'
                f'<text x="{x:.0f}" y="{y + BOX / 2:.0f}">{name}</text>'
            )
    lines = []
    for (source, target), count in sorted(imports(package).items()):
        if source in places and target in places and places[source][1] < places[target][1]:
            (x0, y0), (x1, y1) = places[source], places[target]
            y0 += BOX
            middle = (y0 + y1) / 2
            lines.append(
                f'<path d="M{x0:.0f} {y0}C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1}" '
                f'stroke-width="{min(1 + count / 8, 6):.1f}"/>'
            )
    title = f'<text class="title" x="8" y="{top + 12}">{package}/</text>'
    return [title, *lines, *boxes], 30 + len(rows) * BAND


def picture() -> str:
    """The whole picture as SVG."""
    elements: list[str] = []
    top = 8
    for package in ("tuner", "serving"):
        found, height = drawn(package, top)
        elements += found
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}">'
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{top}" style="fill:#fff;stroke:none"/>'
        + "".join(elements)
        + "</svg>\n"
    )


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(PICTURE.read_text(encoding="utf-8") != picture())
    PICTURE.write_text(picture(), encoding="utf-8")
