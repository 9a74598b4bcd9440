"""Whether one sampler is no worse than another by more than a margin, over paired differences.

In: differences (n,) of regrets, reference less peer, one for each seed or surface. Out: bounds and
p-values. Pure.

The mean of n paired differences against the margin: a one-sided test by Student's t. The upper 95 % bound
lies below the margin exactly where p < 0.05. Where all differences are equal, Student's t knows no doubt;
there the test is that of their signs. Regrets are skewed, so that with few units the level is approximate, and
of fewer than five nothing is said. Several tests are corrected by Holm (Scandinavian Journal of Statistics 6:65, 1979),
which holds for dependent ones as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.contest import LEAST_UNITS, NonInferiority, Standing

Array = NDArray[np.float64]

MARGIN = 0.01
"""One point of regret."""
LEVEL = 0.05
ROUNDING = 1e-12
"""Standard errors below it are those of equal differences."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One mean against the margin."""

    mean: float
    lower: float | None
    """One-sided 95 % bounds; None of fewer than `LEAST_UNITS`."""
    upper: float | None
    p: float | None


def bounded(differences: Array, margin: float) -> Bounded:
    """Differences (n,), n at least 1, against a margin."""
    count, mean = len(differences), float(np.mean(differences))
    unknown = Bounded(mean=mean, lower=None, upper=None, p=None)
    if count < LEAST_UNITS:
        return unknown
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    if error > ROUNDING:
        reach = float(special.stdtrit(count - 1, 1 - LEVEL)) * error
        p = float(special.stdtr(count - 1, -(margin - mean) / error))
        return Bounded(mean=mean, lower=mean - reach, upper=mean + reach, p=p)
    return Bounded(mean=mean, lower=mean, upper=mean, p=0.5**count if mean < margin else 1.0)


def holm(values: Sequence[float]) -> list[float]:
    """Corrected p-values, in the order given."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def judged(
    differences: Sequence[tuple[str, int, Array]], margin: float = MARGIN
) -> tuple[NonInferiority, ...]:
    """All peers and budgets together.

    Args:
        differences: peer, budget, and the differences (n,) of the reference against it.
        margin: in the differences' unit.
    """
    found = [bounded(each, margin) for _, _, each in differences]
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
            standing=_standing(one, by_place.get(place), margin),
        )
        for place, ((peer, budget, each), one) in enumerate(zip(differences, found, strict=True))
    )


def _standing(one: Bounded, corrected_p: float | None, margin: float) -> Standing:
    if one.lower is None or one.upper is None or corrected_p is None:
        return "not shown"
    if corrected_p <= LEVEL:
        return "better" if one.upper < 0 else "non-inferior"
    return "worse" if one.lower > margin else "not shown"
