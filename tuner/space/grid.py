"""Grid of values over a range. Pure.

Numbers are rounded to ten digits, to read the same everywhere (0.3, not 0.30000000000000004).
"""

from __future__ import annotations

import math

DEFAULT_POINTS = 8
"""Default number of values, except for linear ranges of whole numbers."""
MAX_VALUES = 1000
"""Maximum values of one knob."""

_DIGITS = 10


def spread(
    low: float, high: float, *, is_log: bool, is_whole: bool, step: float | None, points: int | None
) -> list[float]:
    """Return ascending values from `low` to at most `high`; rounding may make neighbours equal.

    `is_log` means equal ratios, with `points` only and `low` above 0. Whole numbers default to step
    1 on a linear scale.

    Raises:
        ValueError: the step gives more than `MAX_VALUES`.
    """
    if step is None and points is None and is_whole and not is_log:
        step = 1
    if step is not None:
        count = math.floor((high - low) / step + 1e-9) + 1
        if count > MAX_VALUES:
            raise ValueError(f"{count:,} values, more than {MAX_VALUES}: use `points` instead")
        raw = [low + i * step for i in range(count)]
    else:
        count = points or DEFAULT_POINTS
        shares = [i / (count - 1) for i in range(count)]
        if is_log:
            raw = [low * (high / low) ** share for share in shares]
        else:
            raw = [low + (high - low) * share for share in shares]
    if is_whole:
        return [round(value) for value in raw]
    return [min(max(float(f"{value:.{_DIGITS}g}"), low), high) for value in raw]
