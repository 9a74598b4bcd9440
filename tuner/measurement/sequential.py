"""Sequential test over pairs: when to stop, and a valid interval afterwards.

Stopping as soon as a 95 % interval excludes 0 finds a difference in 12 to 14 of 100 null samples.
So the 5 % error is spent over the looks (Lan and DeMets, Biometrika 70:659, 1983), nearly all at
the end. Boundaries come from the density of the sum, integrated from look to look (Armitage et al.,
JRSS A 132:235, 1969).

Stopping assumes a spread (decisions/0011); an incorrect one costs pairs or power, not coverage. The
final interval is Student's, with the pairs' own spread.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]

ALPHA = 0.05
"""Two-sided probability of a false difference at any look."""
MIN_PAIRS = 6
GROWTH = 1.25
ALIKE = -float(special.ndtri(1 / 3))
"""Correlation of neighbours, in standard errors, that one in three null samples exceeds."""
MIN_DEGREES = 3.0
MAX_ALIKE = 0.8
FAR = 2.5
MAX_STEPS = 50
_legendre = functools.lru_cache(maxsize=1)(np.polynomial.legendre.leggauss)
_MAD = float(special.ndtri(0.75))
LATE = 2.0
"""Exponent of the pairs' share; 1 approximates O'Brien and Fleming's boundaries."""
NODES = 64
_FARTHEST = 9.0
EQUIVALENCE_MARGIN = math.log(1.03)
"""Log difference too small to matter: 3 %."""
MAX_WIDER = 1.5
"""Width of an interval relative to the planned one above which no look ends the comparison."""


def looks(most: int) -> tuple[int, ...]:
    """Return the numbers of pairs at which to look, up to `most`."""
    found: list[int] = []
    at = MIN_PAIRS
    while at < most:
        found.append(at)
        at = max(at + 1, round(GROWTH * at))
    if len(found) > 1 and most - found[-1] < (GROWTH - 1) * found[-1] / 2:
        found.pop()  # two looks at nearly the same data
    return (*found, most)


@dataclasses.dataclass(frozen=True, slots=True)
class StoppingBoundaries:
    """Planned looks with their stopping boundaries."""

    looks: tuple[int, ...]
    boundaries: tuple[float, ...]
    sd: float
    """Assumed sd of the differences."""

    @classmethod
    def of(cls, at: Sequence[int], *, sd: float, alpha: float = ALPHA) -> Self:
        """Plan looks at ascending numbers of pairs; the last one spends the rest of `alpha`."""
        if not sd > 0:
            raise ValueError(f"a presumed spread of {sd}: expected more than 0")
        return cls(tuple(at), _boundaries(tuple(at), alpha), sd)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InterimResult:
    """Interim result at one look."""

    is_crossed: bool
    low: float
    high: float
    """Upper end of the repeated interval; all looks' intervals hold in 95 of 100 samples."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Robust mean of the differences, with a confidence interval."""

    value: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class RobustMean(NamedTuple):
    """Robust mean of differences, with its precision."""

    mean: float
    sd: float
    """Sd of an equal number of independent differences with the same precision."""
    degrees: float


def robust_mean(differences: Sequence[float], nodes: Sequence[str] = ()) -> RobustMean:
    """Return the robust mean of two or more pairs' differences, in order.

    Outliers are drawn in (`robust`). If neighbours on a machine correlate by more than `ALIKE`, its
    differences count as a first-order autoregression, with Kendall's bias correction and Bartlett's
    variance of the mean; those of different machines are independent.

    Args:
        nodes: machine of each difference; empty if all are of the same.
    """
    return _robust_mean(tuple(float(one) for one in differences), tuple(nodes))


@functools.lru_cache(maxsize=256)
def _robust_mean(differences: tuple[float, ...], nodes: tuple[str, ...]) -> RobustMean:
    values = robust(np.asarray(differences, dtype=float))
    count, mean, own = len(values), float(values.mean()), float(values.std(ddof=1))
    if count < MIN_PAIRS or not own:
        return RobustMean(mean, own, count - 1)
    away, on = values - mean, np.array(nodes or [""] * count)
    runs = [away[on == node] for node in dict.fromkeys(nodes or [""])]
    neighbours = count - len(runs)
    alike = sum(float(run[1:] @ run[:-1]) for run in runs) / float(away @ away)
    excess = count * alike + neighbours / (count - 1)
    if excess < ALIKE * math.sqrt(neighbours + 1):
        return RobustMean(mean, own, count - 1)
    kept = min(excess / max(neighbours - 3, 1), MAX_ALIKE)
    more = sum(len(run) / count * _variance_of_mean(len(run), kept) for run in runs)
    sd = own * math.sqrt(more * (count - 1) / (count - more))
    return RobustMean(mean, sd, max(MIN_DEGREES, count / more - 1))


def _variance_of_mean(count: int, correlation: float) -> float:
    """Return the variance of the mean of a first-order autoregression, over that without correlation."""
    lags = np.arange(1, count)
    return 1 + 2 * float((1 - lags / count) @ correlation**lags)


def robust(values: Array) -> Array:
    """Return pseudo-values of differences (n,) whose mean is Huber's estimate of location.

    Their standard error is the estimate's (Robust Statistics, 1981, sections 3.2 and 6.4; the scale
    is the median absolute deviation).
    """
    if len(values) < MIN_PAIRS:
        return values
    middle = _median(values)
    scale = _median(np.abs(values - middle)) / _MAD
    if not scale:
        return values
    for _ in range(MAX_STEPS):
        drawn, share = _draw_in((values - middle) / scale)
        step = scale * float(np.add.reduce(drawn)) / (len(values) * share)
        middle += step
        if abs(step) < 1e-9 * scale:
            break
    drawn, share = _draw_in((values - middle) / scale)
    return np.asarray(middle + scale * drawn / share)


def _draw_in(away: Array) -> tuple[Array, float]:
    """Return values in robust sds drawn in to `FAR`, and the share within it, at least 0.5."""
    drawn = np.minimum(np.maximum(away, -FAR), FAR)
    return drawn, max(np.count_nonzero(np.abs(away) < FAR) / len(away), 0.5)


def _median(values: Array) -> float:
    # np.median takes ten times as long for a few values
    middle = np.sort(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return float(np.add.reduce(middle)) / len(middle)


def read(
    plan: StoppingBoundaries, differences: Sequence[float], look: int, nodes: Sequence[str] = ()
) -> InterimResult:
    """Return what the look with this index shows; `nodes` as for `robust_mean`."""
    known = [robust_mean(differences[:at], nodes[:at]) for at in plan.looks[: look + 1]]
    count, mean = plan.looks[look], known[-1].mean
    # The assumed sd, or the pairs' if it was larger at any look.
    sd = max(plan.sd, *(one.sd for one in known))
    reach = plan.boundaries[look] * sd / math.sqrt(count)
    return InterimResult(is_crossed=abs(mean) > reach, low=mean - reach, high=mean + reach)


def estimate(
    differences: Sequence[float], nodes: Sequence[str] = (), *, alpha: float = ALPHA
) -> Estimate:
    """Return the robust mean of two or more differences (see there), with a 1 - alpha interval."""
    mean, sd, degrees = robust_mean(differences, nodes)
    reach = float(special.stdtrit(degrees, 1 - alpha / 2)) * sd / math.sqrt(len(differences))
    return Estimate(value=mean, low=mean - reach, high=mean + reach)


def alpha_spending(share: float, alpha: float = ALPHA) -> float:
    """Return the two-sided error to have spent after this share of the pairs.

    It is Lan and DeMets' first function of a power of the share, as early pairs cannot reveal
    drift.
    """
    if share >= 1.0:
        return alpha
    outer = -float(special.ndtri(alpha / 4))
    return 4 * float(special.ndtr(-outer / math.sqrt(share**LATE)))


@functools.lru_cache(maxsize=256)
def _boundaries(at: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    found: list[float] = []
    density = _Density()
    before = 0.0
    for count in at:
        now = min(alpha, alpha_spending(count / at[-1], alpha))
        part = max(now - before, 1e-12) / 2
        before = max(before, now)
        boundary = float(
            optimize.brentq(lambda z, n=count, p=part: density.beyond(n, z) - p, 0.0, 9.0)
        )
        found.append(boundary)
        density.go_on(count, boundary)
    return tuple(found)


class _Density:
    def __init__(self) -> None:
        self._count = 0
        self._sums: Array = np.zeros(1)
        self._weights: Array = np.ones(1)

    def beyond(self, count: int, z: float) -> float:
        away = z * math.sqrt(count) - self._sums
        return float(self._weights @ special.ndtr(-away / math.sqrt(count - self._count)))

    def go_on(self, count: int, boundary: float) -> None:
        step = count - self._count
        nodes, weights = _legendre(NODES)
        reach = min(boundary, _FARTHEST) * math.sqrt(count)
        sums = reach * nodes
        away = (sums[:, None] - self._sums) / math.sqrt(step)
        density = np.exp(-0.5 * away**2) @ self._weights / math.sqrt(2 * math.pi * step)
        self._count, self._sums, self._weights = count, sums, reach * weights * density


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """Rule for when to stop adding pairs."""

    most: int
    sd: float
    """Sd assumed in advance for the pairs' log ratios."""
    at: float = 0.0
    """Log difference on which to decide."""
    objectives: int = 1
    """Number of objectives that share the error (Bonferroni)."""

    @property
    def alpha(self) -> float:
        """Error for the comparison in one objective."""
        return ALPHA / self.objectives

    def is_enough(self, differences: Sequence[float], nodes: Sequence[str] = ()) -> bool:
        """Whether the pairs' log ratios, in order, suffice to end a comparison.

        Args:
            nodes: as for `robust_mean`.
        """
        differences = [one - self.at for one in differences]
        plan = StoppingBoundaries.of(looks(self.most), sd=self.sd, alpha=self.alpha)
        return any(
            count == self.most or self._is_told(plan, differences[:count], look, nodes[:count])
            for look, count in enumerate(plan.looks)
            if count <= len(differences)
        )

    def _is_told(
        self,
        plan: StoppingBoundaries,
        differences: Sequence[float],
        look: int,
        nodes: Sequence[str] = (),
    ) -> bool:
        found = estimate(differences, nodes, alpha=self.alpha)
        if found.high - found.low > MAX_WIDER * self._planned_width():
            return False
        reading = read(plan, differences, look, nodes)
        if reading.is_crossed:
            return found.is_shown
        ends = (reading.low, reading.high, found.low, found.high)
        return not self.at and all(-EQUIVALENCE_MARGIN <= end <= EQUIVALENCE_MARGIN for end in ends)

    def _planned_width(self) -> float:
        reach = float(special.stdtrit(MIN_PAIRS - 1, 1 - self.alpha / 2))
        return 2 * reach * self.sd / math.sqrt(MIN_PAIRS)
