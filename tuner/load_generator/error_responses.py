"""Messages from error responses, and hints when synthetic inputs may be the cause."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence

from serving.error_text import printable_line

MAX_REPORTED = 200

_OUT_OF_RANGE = re.compile(
    r"\bind(ex|ices)\b.*\b(out of (data )?(bounds|range)|not in \[)|out of (bounds|range).*\bind(ex|ices)\b",
    re.IGNORECASE,
)
_LAST = re.compile(r"inclusive range \[-?\d+, ?(\d+)\]")
_COUNT = re.compile(r"with size (\d+)|not in \[0, (\d+)\)")


def message(body: str) -> str:
    """Return the `error` message in a JSON body, which may be truncated, or the body itself."""
    for whole in (body, f'{body}"}}'):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(whole)
            if isinstance(found, dict) and isinstance(text := found.get("error"), str) and text:
                return text
    return body


def reported_line(text: str) -> str:
    """Return the text as one printable line of at most `MAX_REPORTED` characters."""
    line = printable_line(text)
    return line if len(line) <= MAX_REPORTED else f"{line[: MAX_REPORTED - 4]} ..."


def hint(response: str, inputs: Sequence[str]) -> str:
    """Return an option to try if an index was out of range, otherwise ""."""
    if not inputs or not _OUT_OF_RANGE.search(response):
        return ""
    high = "HIGH"
    if last := _LAST.search(response):
        high = last[1]
    elif count := _COUNT.search(response):
        high = str(int(count[1] or count[2]) - 1)
    options = " or ".join(f"--values {name}=0..{high}" for name in inputs)
    return f"an index was out of range: give the values that the input takes, {options}"
