"""Values spread over a range: the grid of a knob that does not list its values.

In: two ends, a scale, and a distance or a number of values. Out: ascending numbers. Pure
arithmetic; knows nothing of knobs.

A computed number is rounded to ten digits, so that it is the decimal that a person would write
(0.3, not 0.30000000000000004) and reads the same in files, in Optuna's store and in reports.
"""

from __future__ import annotations

import math

DEFAULT_POINTS = 8
"""Values of a range without `step` and `points` that is not a linear one of whole numbers."""
MAX_VALUES = 1000
"""Most values of one knob: a search cannot tell as many apart."""

_DIGITS = 10


def spread(
    low: float, high: float, *, is_log: bool, is_whole: bool, step: float | None, points: int | None
) -> list[float]:
    """Ascending values from `low` to at most `high`; rounding may make neighbours equal.

    Args:
        low: first value; above 0 if `is_log`.
        high: last value, unless the steps do not meet it.
        is_log: equal ratios instead of equal distances; with `points` only.
        is_whole: whole numbers only; they have a step of 1 unless something else is said.
        step: distance of neighbours.
        points: number of values, instead of a step.

    Raises:
        ValueError: there would be more than `MAX_VALUES`.
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
