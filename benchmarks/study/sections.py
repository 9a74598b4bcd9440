"""Section: the answer of the page to one question; texts and colours that sections share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import svg
from findings import Ratio
from result import Table

from tuner.report import formatting

COLUMNS = 3
GUIDED, RANDOM = svg.COLOURS[0], svg.COLOURS[1]
SEARCHES = {
    "random": RANDOM,
    "gpy": GUIDED,
    "epsilon-greedy": svg.COLOURS[2],
    "structured": svg.COLOURS[3],
}
"""Colours of the samplers."""
SHORT = {"random, half": "half", "epsilon-greedy": "ε-greedy", "structured": "struct."}
"""Names that fit under a picture."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Answer of the page to one question, with its picture and tables."""

    name: str
    """Name of the picture's file."""
    title: str
    claim: str
    short: str
    """What was found, in the page's first table."""
    sure: str
    """How sure that is."""
    found: tuple[str, ...] = ()
    picture: str | None
    tables: tuple[Table, ...]


def ratio_text(found: Ratio | None) -> str:
    """Return a ratio with its interval, or a dash, or that both winners are the same."""
    if found is None:
        return "–"
    if found.interval.low == found.interval.high == 1:
        return "same"
    return f"{found.value:.3g} ({formatting.interval(found.interval)})"


def knobs_of(configuration: Mapping[str, Any]) -> str:
    """Return a configuration in the short form of the tables."""
    return ", ".join(f"{name.partition('.')[2]} {value}" for name, value in configuration.items())
