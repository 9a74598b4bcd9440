"""Every row of the benchmark of search: a figure for each line of `PROTOCOL.md`, and whether it is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import search_rows
import study_rows
from replayed_case import ReplayedCase
from row import Row, concluded

OWN_S = 0.3

EVERY: Mapping[str, Callable[[Sequence[ReplayedCase]], Row]] = {
    "tried": search_rows.tried,
    "oracle": search_rows.gap,
    "harm": search_rows.harm,
    "peers": search_rows.against_peers,
    "gallery": search_rows.gallery,
    "transfer": search_rows.transfer,
    "study": study_rows.study,
    "wrong": search_rows.wrong,
    "verdicts": study_rows.verdicts,
}
"""Rows of the cases, by key."""


def own_time(found: Mapping[str, Any] | None) -> Row:
    """The samplers' own time."""
    row = Row(
        key="own-time",
        what="a sampler's own time per trial, after 60 trials among 5,000 configurations",
        target=f"under {OWN_S} s",
    )
    if found is None:
        return row
    measured = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["seconds"].items())
    return concluded(row, (), measured, is_reached=max(found["seconds"].values()) < OWN_S)
