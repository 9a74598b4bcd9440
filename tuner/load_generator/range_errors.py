"""Hints for index-out-of-range errors, which synthetic inputs may cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OUT_OF_RANGE = re.compile(
    r"\bind(ex|ices)\b.*\b(out of (data )?(bounds|range)|not in \[)|out of (bounds|range).*\bind(ex|ices)\b",
    re.IGNORECASE,
)
_LAST = re.compile(r"inclusive range \[-?\d+, ?(\d+)\]")
_COUNT = re.compile(r"with size (\d+)|not in \[0, (\d+)\)")


def hint(response: str, inputs: Sequence[str]) -> str:
    """Option to try if a message reports an index out of range, else empty."""
    if not inputs or not _OUT_OF_RANGE.search(response):
        return ""
    high = "HIGH"
    if last := _LAST.search(response):
        high = last[1]
    elif count := _COUNT.search(response):
        high = str(int(count[1] or count[2]) - 1)
    options = " or ".join(f"--values {name}=0..{high}" for name in inputs)
    return f"an index was out of range: give the values that the input takes, {options}"
