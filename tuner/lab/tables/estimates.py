"""Estimates of each candidate's log mean, with standard errors.

Variances from few evaluations are shrunk towards the pooled one (empirical Bayes: Smyth, Stat.
Appl. Genet. Mol. Biol. 3, 2004, with fixed prior weight).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy import special

Cell = TypeVar("Cell", bound=Hashable)

PRIOR_DEGREES = 4.0
"""Weight of the pooled variance, as degrees of freedom."""
UNKNOWN_SD = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class CandidateEstimate:
    """Estimated mean of one candidate."""

    log_mean: float
    se: float
    """Standard error of `log_mean` (0.01 means 1 %)."""
    evaluations: int

    @property
    def mean(self) -> float:
        """Geometric mean of the evaluations, in the objective's unit."""
        return math.exp(self.log_mean)


def pooled_sd(values: Mapping[Cell, Sequence[float]]) -> float:
    """Return a typical candidate's sd between evaluations, on the log scale.

    A weighted median of variances, each divided by its chi-squared median, resists disturbed
    candidates.
    """
    found, weights = [], []
    for each in values.values():
        degrees = len(each) - 1
        if degrees < 1:
            continue
        own = float(np.log(np.asarray(each, dtype=float)).var(ddof=1))
        found.append(own * degrees / (2 * float(special.gammaincinv(degrees / 2, 0.5))))
        weights.append(degrees)
    if not found:
        return UNKNOWN_SD
    order = np.argsort(found)
    reached = np.cumsum(np.array(weights)[order])
    middle = int(np.searchsorted(reached, reached[-1] / 2))
    return math.sqrt(found[int(order[middle])])


def estimates(values: Mapping[Cell, Sequence[float]]) -> dict[Cell, CandidateEstimate]:
    """Estimate every candidate that has values."""
    pooled = pooled_sd(values) ** 2
    found = {}
    for cell, each in values.items():
        if not len(each):
            continue
        logs = np.log(np.asarray(each, dtype=float))
        own = float(((logs - logs.mean()) ** 2).sum())
        variance = (PRIOR_DEGREES * pooled + own) / (PRIOR_DEGREES + len(logs) - 1)
        found[cell] = CandidateEstimate(
            float(logs.mean()), math.sqrt(variance / len(logs)), len(logs)
        )
    return found
