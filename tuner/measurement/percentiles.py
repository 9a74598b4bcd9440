"""Percentiles with intervals that claim no more than the sample can give.

In: sorted latencies (n,). Out: nearest-rank percentiles and distribution-free 95 % intervals
between two order statistics, whose ranks are those of `tuner.tails`.

Requests of one phase are not independent, so the ranks are those of a sample of the effective size
(`effective`), carried over to the same shares of the whole one (Woodruff, JASA 47:635, 1952). They all
come from one launch: these intervals know nothing of the spread between launches.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner import tails
from tuner.values import Interval


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


def interval(
    ordered: NDArray[np.float64], share: float, *, effective: float | None = None
) -> Interval:
    """95 % interval of the true percentile.

    Args:
        ordered: (n,) ascending.
        share: 0.99 for p99; between 0 and 1.
        effective: independent values that these are worth, at most n; None: n.
    """
    low, high = tails.ranks_of(len(ordered), share, effective=effective)
    return Interval(
        low=None if low is None else float(ordered[low - 1]),
        high=None if high is None else float(ordered[high - 1]),
    )


def _nearest_rank(count: int, share: float) -> int:
    # The product of a share such as 0.95 and a count may lie a rounding error above a whole number.
    return max(1, math.ceil(share * count - 1e-9))
