"""What was measured: one file per unit in `data/`, a line of JSON each.

A file appears whole when its unit is complete, so that a killed unit is measured again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from units import Unit

DATA = pathlib.Path(__file__).resolve().parent / "data"
Row = Mapping[str, Any]


def path_of(unit: Unit, folder: pathlib.Path) -> pathlib.Path:
    """Return the file of a unit."""
    return folder / f"{unit.name}.json"


def keep(unit: Unit, found: Row, folder: pathlib.Path) -> None:
    """Write the row of a complete unit."""
    path = path_of(unit, folder)
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    line = json.dumps({"unit": dataclasses.asdict(unit), **found}, separators=(",", ":"))
    part.write_text(line + "\n", encoding="utf-8")
    part.replace(path)


def read(kind: str, folder: pathlib.Path) -> list[Row]:
    """Return the rows of a kind, by model, spawner, concurrency and seed."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{kind}_*.json")]
    return sorted(rows, key=lambda row: list(row["unit"].values()))


def name_of(row: Row) -> str:
    """Return what a picture calls the model of a row."""
    unit = row["unit"]
    return unit["model"] if unit["spawner"] == "process" else f"{unit['model']} ({unit['spawner']})"
