"""What each cell's launches say of it: a mean on the log scale, with a standard error that uses all cells.

In: objectives of launches by cell, positive. Out: `Estimate`s. Pure.

The spread of two or three launches is hardly known, so a cell's variance is drawn towards that of all
cells, as if every cell had `PRIOR_DEGREES` more degrees of freedom of the pooled one (the empirical
Bayes estimator of Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, with its
prior's weight held fixed).
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
"""Weight of the pooled variance against a cell's own."""
UNKNOWN_SD = 0.05
"""Spread of launches where no cell was launched twice: 5 %, what quiet machines show."""


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """One cell."""

    log_mean: float
    se: float
    """Standard error of `log_mean`: 0.01 is one per cent."""
    launches: int

    @property
    def mean(self) -> float:
        """In the unit of the objectives: the geometric mean of the launches."""
        return math.exp(self.log_mean)


def pooled_sd(values: Mapping[Cell, Sequence[float]]) -> float:
    """Standard deviation between launches of one cell, on the log scale, of a typical cell.

    The median over cells, each variance divided by the median of its chi-squared distribution, so that
    a few cells whose launches fell into a bad minute of the machine do not speak for all.
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


def estimates(values: Mapping[Cell, Sequence[float]]) -> dict[Cell, Estimate]:
    """Every cell that has a value."""
    pooled = pooled_sd(values) ** 2
    found = {}
    for cell, each in values.items():
        if not len(each):
            continue
        logs = np.log(np.asarray(each, dtype=float))
        own = float(((logs - logs.mean()) ** 2).sum())
        variance = (PRIOR_DEGREES * pooled + own) / (PRIOR_DEGREES + len(logs) - 1)
        found[cell] = Estimate(float(logs.mean()), math.sqrt(variance / len(logs)), len(logs))
    return found
