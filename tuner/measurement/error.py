"""Standard error of an objective from one evaluation alone. Pure.

On the log scale (0.01 is 1 %), without the spread between evaluations (`noise`).
"""

from __future__ import annotations

import math

from scipy import special

from tuner.measurement.blocks import MOST_BATCHES
from tuner.objective import Objective
from tuner.values import Measurement

OF_RANKS = frozenset({"p50", "p95", "p99"})
"""Objectives with intervals between order statistics; the others use blocks."""


def relative_error(objective: Objective, measurement: Measurement) -> float | None:
    """Return half the interval's log width over its quantile; None if an end is unknown."""
    ends = objective.interval(measurement)
    if not ends.low or not ends.high or ends.low <= 0:
        return None
    quantile = 1.96
    if objective.name not in OF_RANKS:
        count = len(measurement.blocks)
        batches = count // math.ceil(count / MOST_BATCHES)
        quantile = float(special.stdtrit(batches - 1, 0.975))
    return math.log(ends.high / ends.low) / (2 * quantile)
