"""Percentiles with intervals that claim no more than the sample can give.

In: sorted latencies (n,). Out: nearest-rank percentiles and distribution-free 95 % intervals
between two order statistics (the number of values under the true percentile is binomial: David and
Nagaraja, Order Statistics, section 7.1).

An end is None where even the extreme value may well lie on the wrong side of the true percentile:
where the sample's maximum reaches it with less than 99 % probability. For p99 that is under 459
values, the number at which MLPerf stops early at the soonest; for p95 under 90, for p50 under 7.

The values are taken as independent. Requests of one phase are not quite, and they all come from one
launch: these intervals know nothing of the spread between launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.values import Interval

TAIL = 0.025
EXTREME = 0.99
"""Probability with which a sample's extreme must lie beyond the true percentile before an end is given."""


def percentile(ordered: NDArray[np.float64], share: float) -> float:
    """The smallest value with at least this share of the values at or below it.

    Args:
        ordered: (n,) ascending, n at least 1.
        share: 0.99 for p99; above 0, at most 1.
    """
    return float(ordered[_nearest_rank(len(ordered), share) - 1])


def spread(ordered: NDArray[np.float64]) -> float:
    """p95 - p5: nine in ten values lie within it.

    An inter-quantile range, which one value in twenty at each end cannot move (Huber and Ronchetti,
    Robust Statistics, chapter 5), where a standard deviation, and with it a coefficient of
    variation, follows a single stall. A narrower range, such as that of the quartiles, can lie
    inside one of two clusters of round trips and miss that there are two.

    Args:
        ordered: (n,) ascending, n at least 1.
    """
    return percentile(ordered, 0.95) - percentile(ordered, 0.05)


def interval(ordered: NDArray[np.float64], share: float) -> Interval:
    """95 % interval of the true percentile.

    Args:
        ordered: (n,) ascending.
        share: 0.99 for p99; between 0 and 1.
    """
    low, high = interval_ranks(len(ordered), share)
    return Interval(
        low=None if low is None else float(ordered[low - 1]),
        high=None if high is None else float(ordered[high - 1]),
    )


def interval_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that enclose the percentile; None where there is none."""
    low: int | None = None
    if 1 - (1 - share) ** count >= EXTREME:
        # P(the low-th value lies above the percentile) = P(fewer than `low` values under it).
        low = _first(count, lambda rank: special.bdtr(rank, count, share) > TAIL)
    high: int | None = None
    if 1 - share**count >= EXTREME:
        high = _first(count, lambda rank: special.bdtrc(rank - 1, count, share) <= TAIL)
    return low, high


def _nearest_rank(count: int, share: float) -> int:
    # The product of a share such as 0.95 and a count may lie a rounding error above a whole number.
    return max(1, math.ceil(share * count - 1e-9))


def _first(count: int, is_reached: Callable[[int], bool]) -> int | None:
    """The smallest rank from 1 to count at which a condition, false and then true, holds."""
    low, high = 1, count + 1
    while low < high:
        middle = (low + high) // 2
        if is_reached(middle):
            high = middle
        else:
            low = middle + 1
    return low if low <= count else None
