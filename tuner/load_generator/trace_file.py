"""Trace of arrivals from a text file with one ascending second per line.

Empty lines and # comments are skipped.
"""

from __future__ import annotations

import math
import pathlib

from serving.system import user_files
from tuner.errors import UsageError
from tuner.load_generator import arrivals

MAX_ARRIVALS = 100_000
MAX_BYTES = 4 << 20


def read(path: pathlib.Path) -> tuple[float, ...]:
    """Offsets of a file.

    Raises:
        UsageError: unreadable, too large, an invalid or descending second, or no two different times.
    """
    offsets: list[float] = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        given = line.partition("#")[0].strip()
        if not given:
            continue
        if len(offsets) == MAX_ARRIVALS:
            raise UsageError(
                f"trace {path}, line {number}: expected at most {MAX_ARRIVALS:,} arrivals"
            )
        offsets.append(_second(given, f"trace {path}, line {number}"))
        if len(offsets) > 1 and offsets[-1] < offsets[-2]:
            raise UsageError(
                f"trace {path}, line {number}: {given} comes after {offsets[-2]:g}, expected seconds in "
                "ascending order; sort the file"
            )
    try:
        arrivals.traced_rate(offsets)
    except ValueError as error:
        raise UsageError(f"trace {path}: {error}, this one has {len(offsets)}") from None
    return tuple(offsets)


def _text(path: pathlib.Path) -> str:
    try:
        return user_files.text(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"trace {path}: not text (byte {error.start}), expected one second per line"
        ) from error


def _second(given: str, where: str) -> float:
    try:
        second = float(given)
    except ValueError:
        second = math.nan
    if not (math.isfinite(second) and second >= 0):
        raise UsageError(f"{where}: {given[:40]!r} is not a time, expected seconds from 0, as 12.5")
    return second
