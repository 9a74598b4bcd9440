"""How many independent requests a phase is worth, for a percentile: fewer than it answered.

Requests of one batch end together, and those of one stall are slow together, so that a thousand of them
tell less of a p99 than a thousand independent ones would. In: which requests lie above the percentile,
and when they were answered. Out: the effective number of requests. Pure.

    n_effective = n / design effect,    design effect = Var(share above) / (p (1 - p) / n)

The variance of the share above the percentile is estimated from the shares of parts of the phase that
follow one another (batch means), as that of a ratio, because parts differ in their requests; divided by
what it were of independent requests it is Kish's design effect (Survey Sampling, 1965, section 8.2).
The binomial interval at the effective number is Korn's and Graubard's (Survey Methodology 24:193, 1998).

A part is a whole number of quota periods and at least two mean round trips long; 20 of them at most. Where
there are fewer than `LEAST_PARTS`, nobody knows how alike requests are, and a part counts as one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.measurement import blocks
from tuner.settings import QUOTA_PERIOD_S

MOST_PARTS = 20
LEAST_PARTS = 5
"""Fewer tell nothing of how alike requests of a part are."""


def part_of(
    at_s: NDArray[np.float64], *, start_s: float, seconds: float, mean_s: float
) -> NDArray[np.intp]:
    """The part (n,) of the phase that each request belongs to, by number.

    Args:
        at_s: (n,) when each request counts.
        start_s: end of the warm-up.
        seconds: length of the measured part.
        mean_s: mean round trip.
    """
    shortest_s = blocks.block_seconds(QUOTA_PERIOD_S, mean_s)
    each_s = shortest_s * max(1, math.ceil(seconds / (MOST_PARTS * shortest_s) - 1e-9))
    count = max(1, math.floor(seconds / each_s + 1e-6))
    # What remains at the end belongs to the last part.
    return np.clip(((at_s - start_s) // each_s).astype(np.intp), 0, count - 1)


def design_effect(is_above: NDArray[np.bool_], parts: NDArray[np.intp]) -> float:
    """By how much the share above is less certain than that of independent requests; at least 1.

    Args:
        is_above: (n,) whether each request lies above the percentile; n at least 1.
        parts: (n,) the part that each belongs to.
    """
    counts = np.bincount(parts).astype(float)
    above = np.bincount(parts, weights=is_above, minlength=len(counts))
    counts, above = counts[counts > 0], above[counts > 0]
    size, total = float(counts.sum()), float(above.sum())
    if len(counts) < LEAST_PARTS:
        return size / len(counts)
    share = total / size
    if not 0 < share < 1:
        return 1.0
    residuals = above - share * counts
    spread = len(counts) / (len(counts) - 1) * float(residuals @ residuals)
    return min(size, max(1.0, spread / (size * share * (1 - share))))
