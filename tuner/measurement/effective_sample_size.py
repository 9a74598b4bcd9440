"""Effective number of independent requests behind a percentile.

Requests of one batch or stall are alike:

    n_effective = n / design effect,    design effect = Var(share above) / (p (1 - p) / n)

The variance is a ratio's over consecutive parts of the phase (batch means), which gives Kish's
design effect (Survey Sampling, 1965, section 8.2). The binomial interval is Korn and Graubard's
(Survey Methodology 24:193, 1998).

A part spans whole quota periods and at least two mean latencies. Under `MIN_PARTS` each part counts
as one request.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.measurement import blocks
from tuner.settings.measurement import QUOTA_PERIOD_S

MAX_PARTS = 20
MIN_PARTS = 5


def part_of(
    at_s: NDArray[np.float64], *, start_s: float, seconds: float, mean_s: float
) -> NDArray[np.intp]:
    """Number (n,) of each request's part of the phase.

    `at_s` (n,) is when requests count, `start_s` the end of the warm-up.
    """
    shortest_s = blocks.block_seconds(QUOTA_PERIOD_S, mean_s)
    each_s = shortest_s * max(1, math.ceil(seconds / (MAX_PARTS * shortest_s) - 1e-9))
    count = max(1, math.floor(seconds / each_s + 1e-6))
    # A remainder at the end belongs to the last part.
    return np.clip(((at_s - start_s) // each_s).astype(np.intp), 0, count - 1)


def design_effect(is_above: NDArray[np.bool_], parts: NDArray[np.intp]) -> float:
    """Design effect of the share above the percentile, at least 1.

    Args:
        is_above: (n,) whether each request lies above it; n at least 1.
        parts: (n,) the part of each request.
    """
    counts = np.bincount(parts).astype(float)
    above = np.bincount(parts, weights=is_above, minlength=len(counts))
    counts, above = counts[counts > 0], above[counts > 0]
    size, total = float(counts.sum()), float(above.sum())
    if len(counts) < MIN_PARTS:
        return size / len(counts)
    share = total / size
    if not 0 < share < 1:
        return 1.0
    residuals = above - share * counts
    spread = len(counts) / (len(counts) - 1) * float(residuals @ residuals)
    return min(size, max(1.0, spread / (size * share * (1 - share))))
