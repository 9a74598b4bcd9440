"""How uncertain the objective of one launch is, by the launch itself, as one figure.

In: an objective and a measurement. Out: a standard error on the log scale: 0.01 reads as 1 %. What
launches differ by is not in it (`noise`). Pure.
"""

from __future__ import annotations

import math

from scipy import special

from tuner.measurement.blocks import MOST_BATCHES
from tuner.objective import Objective
from tuner.values import Measurement

OF_RANKS = frozenset({"p50", "p95", "p99"})
"""Objectives whose interval lies between two order statistics; the others' comes from blocks."""


def relative_error(objective: Objective, measurement: Measurement) -> float | None:
    """Half of the interval's width on the log scale, over the quantile that made the interval.

    None where an end of the interval is not known.
    """
    ends = objective.interval(measurement)
    if not ends.low or not ends.high or ends.low <= 0:
        return None
    quantile = 1.96
    if objective.name not in OF_RANKS:
        count = len(measurement.blocks)
        batches = count // math.ceil(count / MOST_BATCHES)
        quantile = float(special.stdtrit(batches - 1, 0.975))
    return math.log(ends.high / ends.low) / (2 * quantile)
