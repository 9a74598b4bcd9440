"""What was measured: one file of JSON lines per figure, model and spawner, in `data/`.

The first line holds the machine and the versions, each other one a launch or a search with its
`key`. A line is written whole as soon as it is measured, so that a killed run goes on behind the
last one; what a kill has cut off is measured again.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

DATA = pathlib.Path(__file__).resolve().parent / "data"
RENAMED = ('"batching.objective_ms"', '"batching.slo_ms"')
"""A setting in older lines, and its name today."""
FIGURES = ("a", "b", "search", "batch", "replicas", "slo")
"""Kinds of data; the figures c, d and e are all drawn from `search`."""


class Records:
    """The lines of one file."""

    def __init__(self, figure: str, model: str, spawner: str, folder: pathlib.Path = DATA) -> None:
        self.figure = figure
        self.model = model
        self.spawner = spawner
        self.path = folder / f"{figure}-{model}-{spawner}.jsonl"
        self.machine: Mapping[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            now = whole.replace(*RENAMED)
            lines = [json.loads(line) for line in now.splitlines()]
            if lines:
                self.machine, self.rows = lines[0]["machine"], lines[1:]
            if whole != text:
                self.path.write_text(whole, encoding="utf-8")

    @property
    def name(self) -> str:
        """What a picture calls it."""
        return self.model if self.spawner == "process" else f"{self.model} ({self.spawner})"

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether a row of that key is there."""
        return any(row["key"] == dict(key) for row in self.rows)

    def append(self, row: dict[str, Any], machine: Mapping[str, str]) -> None:
        """Write one row; the machine's facts before the first."""
        new = [row] if self.machine else [{"machine": dict(machine)}, row]
        self.machine = self.machine or machine
        self.path.parent.mkdir(exist_ok=True, parents=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in new))
        self.rows.append(row)


def found(figure: str, folder: pathlib.Path = DATA) -> list[Records]:
    """All files of a figure, by model and spawner, without those in which nothing is."""
    every = []
    for path in sorted(folder.glob(f"{figure}-*.jsonl")):
        _, model, spawner = path.stem.split("-")
        one = Records(figure, model, spawner, folder)
        every += [one] if one.rows else []
    return every
