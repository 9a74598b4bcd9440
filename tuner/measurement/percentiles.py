"""Nearest-rank percentiles, with distribution-free 95 % intervals.

As requests are dependent, ranks are those for the effective sample size (Woodruff, JASA 47:635,
1952). The intervals do not cover the spread between evaluations.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.metrics import tail_latency
from tuner.values.interval import Interval


def percentile(ordered: NDArray[np.float64], share: float) -> float:
    """Return the smallest of ascending values (n,) up to which at least this share of them lie."""
    # Rounding may lift the product of share and count just above a whole number.
    rank = max(1, math.ceil(share * len(ordered) - 1e-9))
    return float(ordered[rank - 1])


def spread(ordered: NDArray[np.float64]) -> float:
    """Return p95 - p5 of one or more ascending values (n,).

    It is robust to outliers (Huber and Ronchetti, Robust Statistics, chapter 5) but, unlike a
    quartile range, spans both of two latency clusters.
    """
    return percentile(ordered, 0.95) - percentile(ordered, 0.05)


def interval(
    ordered: NDArray[np.float64], share: float, *, effective: float | None = None
) -> Interval:
    """Return a 95 % interval for the percentile of values (n,), `effective` of them independent."""
    low, high = tail_latency.ranks_of(len(ordered), share, effective=effective)
    return Interval(
        low=None if low is None else float(ordered[low - 1]),
        high=None if high is None else float(ordered[high - 1]),
    )
