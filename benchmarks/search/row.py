"""One row of the benchmark of search, and how its figures are written."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

Verdict = Literal["reached", "MISSED", "not measured"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the overview, and the table of its section."""

    key: str
    what: str
    target: str
    measured: str = ""
    verdict: Verdict = "not measured"
    head: tuple[str, ...] = ()
    lines: Sequence[tuple[str, ...]] = ()


def concluded(
    row: Row,
    lines: Sequence[tuple[str, ...]],
    measured: str,
    *,
    is_reached: bool,
    missing: Sequence[str] = (),
) -> Row:
    """Return the row with its figure, and whether that is enough; what lacks something is not reached."""
    verdict: Verdict = "reached" if is_reached else "MISSED"
    if missing:
        measured = f"{measured}; not measured: {', '.join(missing)}"
        verdict = "not measured" if is_reached else "MISSED"
    return dataclasses.replace(row, lines=lines, measured=measured, verdict=verdict)


def share_of(values: Iterable[bool]) -> float:
    """Return how many of the values are true, as a share."""
    return statistics.fmean(values)


def count(value: float) -> str:
    """Write a whole number; infinite is `never`."""
    return f"{value:.0f}" if math.isfinite(value) else "never"


def percent(share: float | None) -> str:
    """Write a share in percent; None is a dash."""
    return "-" if share is None else f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """Write a difference of shares in points, with its sign."""
    return f"{100 * difference:+.1f}"


def yes(is_reached: bool) -> str:
    """Write whether a line is reached."""
    return "yes" if is_reached else "no"
