"""Test of whether one sampler is worse than another by more than a margin.

Paired regret differences, reference minus peer, get a one-sided Student's t test, or a sign test if
identical. Regrets are skewed, so with few units the level is approximate. Holm's correction
(Scandinavian Journal of Statistics 6:65, 1979) allows for dependence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.metrics.benchmark import MIN_UNITS, NonInferiority, NonInferiorityResult

Array = NDArray[np.float64]

MARGIN = 0.01
LEVEL = 0.05
ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeanBound:
    """Mean difference with its confidence bounds and the p-value of a non-inferiority test."""

    mean: float
    lower: float | None
    """One-sided 95 % bounds; None for fewer than `MIN_UNITS` differences."""
    upper: float | None
    p: float | None


def bound_mean(differences: Array, margin: float) -> MeanBound:
    """Test one or more differences (n,) against a margin."""
    count, mean = len(differences), float(np.mean(differences))
    unknown = MeanBound(mean=mean, lower=None, upper=None, p=None)
    if count < MIN_UNITS:
        return unknown
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    if error > ROUNDING:
        reach = float(special.stdtrit(count - 1, 1 - LEVEL)) * error
        p = float(special.stdtr(count - 1, -(margin - mean) / error))
        return MeanBound(mean=mean, lower=mean - reach, upper=mean + reach, p=p)
    return MeanBound(mean=mean, lower=mean, upper=mean, p=0.5**count if mean < margin else 1.0)


def holm(values: Sequence[float]) -> list[float]:
    """Return the Holm-corrected p-values, in the given order."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def judge(
    differences: Sequence[tuple[str, int, Array]], margin: float = MARGIN
) -> tuple[NonInferiority, ...]:
    """Test all samplers and budgets together, given as (peer, budget, differences (n,))."""
    found = [bound_mean(each, margin) for _, _, each in differences]
    with_p = [place for place, one in enumerate(found) if one.p is not None]
    corrected = holm([p for one in found if (p := one.p) is not None])
    by_place = dict(zip(with_p, corrected, strict=True))
    return tuple(
        NonInferiority(
            peer=peer,
            budget=budget,
            units=len(each),
            difference=one.mean,
            upper=one.upper,
            p=one.p,
            corrected_p=by_place.get(place),
            standing=_result(one, by_place.get(place), margin),
        )
        for place, ((peer, budget, each), one) in enumerate(zip(differences, found, strict=True))
    )


def _result(one: MeanBound, corrected_p: float | None, margin: float) -> NonInferiorityResult:
    if one.lower is None or one.upper is None or corrected_p is None:
        return "not shown"
    if corrected_p <= LEVEL:
        return "better" if one.upper < 0 else "non-inferior"
    return "worse" if one.lower > margin else "not shown"
