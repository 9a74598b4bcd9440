"""When enough pairs were measured, and an interval that is honest although the data decided when to stop.

In: differences of pairs, in their order, the numbers of pairs at which one looks, and the spread that
differences are presumed to have. Out: whether to stop, and an estimate with its interval. Pure.

Looking at a growing sample until its 95 % interval leaves out 0 finds something in 12 to 14 of 100
samples of nothing. So the error of 5 % is shared out over the looks (Lan and DeMets, "Discrete
Sequential Boundaries for Clinical Trials", Biometrika 70:659, 1983), most of it at the end, by the
function that comes near O'Brien and Fleming's boundaries. The boundaries follow from the density of the
sum at each look, integrated numerically from look to look (Armitage, McPherson and Rowe, Journal of the
Royal Statistical Society A 132:235, 1969).

Whether to stop is decided with a spread that was known before, from the search. With the pairs' own it would
be decided by chance: of six pairs those look certain whose spread came out small, and of a clear gain
the intervals then hold the truth in 28 of 100 samples (simulated; decisions/0011). The presumed
spread may be wrong, and does not enter the result: a spread that is off by 40 % costs pairs or power,
not coverage.

After the stop the plain mean is biased outwards. The estimate and the interval here come from the order of
outcomes by look (Tsiatis, Rosner and Mehta, "Exact Confidence Intervals Following a Group Sequential
Test", Biometrics 40:797, 1984): more extreme is what crosses earlier, then what lies further out. Their
width is that of the pairs' own spread, by Student's distribution, each t being read as the normal
statistic of the same tail (Jennison and Turnbull, Group Sequential Methods, 1999, section 11.5).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]

ALPHA = 0.05
"""Chance that any look finds a difference where there is none, both directions together."""
LEAST_PAIRS = 6
"""Before the first look: with fewer, Student's factor is above 2.6 and the spread hardly known."""
GROWTH = 1.25
"""Pairs at one look over those at the look before it: more looks gain little and cost error."""
ALIKE = -float(special.ndtri(0.1))
"""Standard errors by which neighbours are more alike than chance allows in nine of ten samples."""
MOST_ALIKE = 0.8
"""Coefficient beyond which so few pairs cannot tell a drift from a difference."""
NODES = 64
"""Of the numerical integration at each look."""
_FARTHEST = 12.0
"""Standard errors within which ends of intervals are sought."""


def looks(most: int) -> tuple[int, ...]:
    """Numbers of pairs at which one looks, the last being `most`."""
    found: list[int] = []
    at = LEAST_PAIRS
    while at < most:
        found.append(at)
        at = max(at + 1, round(GROWTH * at))
    if len(found) > 1 and most - found[-1] < (GROWTH - 1) * found[-1] / 2:
        found.pop()  # two looks at nearly the same data
    return (*found, most)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Looks, and how far out the mean must lie at each."""

    looks: tuple[int, ...]
    """Pairs at each, ascending."""
    boundaries: tuple[float, ...]
    """|z| from which it stops, one per look."""
    sd: float
    """Presumed standard deviation of the differences."""

    @classmethod
    def of(
        cls, at: Sequence[int], *, sd: float, most: int | None = None, alpha: float = ALPHA
    ) -> Self:
        """The plan of these looks.

        Args:
            at: numbers of pairs, ascending; at the last one all of the error is spent.
            sd: presumed standard deviation of the differences.
            most: pairs by which the error of the looks before the last one is shared out; None: the
                last one. It differs where the end came earlier than planned: what was looked at before
                must not depend on when that is.
            alpha: error of all looks together.
        """
        if not at or any(b <= a for a, b in itertools.pairwise(at)) or at[0] < 2:
            raise ValueError(f"looks {tuple(at)}: expected ascending numbers from 2")
        if not sd > 0:
            raise ValueError(f"a presumed spread of {sd}: expected more than 0")
        return cls(tuple(at), _boundaries(tuple(at), most or at[-1], alpha), sd)

    def presumed(self, differences: Sequence[float], look: int) -> float:
        """Standard deviation by which a look decides: no less than that of the pairs at any look so far.

        More pairs are worth their time where they differ more than was presumed; that they differ less is
        no reason to stop.
        """
        return max(self.sd, *(spread(differences[:count]) for count in self.looks[: look + 1]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a look shows, with the spread by which it decides."""

    is_crossed: bool
    """Whether the mean is so far from 0 that more pairs need not be looked at."""
    low: float
    high: float
    """Ends of the repeated interval: at all looks together it misses the truth in 5 of 100 samples."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The difference after the stop."""

    value: float
    """Median unbiased."""
    low: float
    high: float
    """95 %."""

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the pairs showed at the look that was the last one."""

    looks: tuple[int, ...]
    """Pairs at each, to the last one."""
    passed: tuple[float, ...]
    """|z| at which it would have stopped at each look before, in units of `sd`."""
    mean: float
    sd: float

    @classmethod
    def of(cls, plan: Plan, differences: Sequence[float], look: int) -> Self:
        """What they showed; arguments as for `estimate`."""
        count = plan.looks[look]
        values = np.asarray(differences[:count], dtype=float)
        if len(values) < 2:
            raise ValueError(f"{len(values)} differences: expected at least 2")
        sd = spread(values)
        # The boundaries before, in units of the spread that the differences turned out to have.
        passed = tuple(
            plan.boundaries[before] * plan.presumed(differences, before) / sd
            for before in range(look if sd else 0)
        )
        return cls(looks=plan.looks[: look + 1], passed=passed, mean=float(values.mean()), sd=sd)

    @property
    def count(self) -> int:
        """Pairs."""
        return self.looks[-1]

    @property
    def error(self) -> float:
        """Standard error of the mean, were the number of pairs fixed."""
        return self.sd / math.sqrt(self.count)

    def tail(self, difference: float) -> float:
        """Chance of what was seen, or of what is further up in the order of outcomes, if this were the
        difference; the pairs must not all be equal.

        It ascends with the difference, and is uniform between 0 and 1 at the true one: the ends of an
        interval are where it is half of the error, or one minus that.
        """
        drift = difference / self.sd
        z = _normal((self.mean - difference) / self.error, self.count - 1)
        return _upper(self.looks, self.passed, z + drift * math.sqrt(self.count), drift)


def spread(differences: Sequence[float] | Array) -> float:
    """Standard deviation of independent differences whose mean would be known as well as the mean of these.

    It is their own, but where neighbours are more alike than chance makes one sample in ten: then what is
    common to them moves in time, and their mean is known less well than their number says. They are taken
    for a first-order autoregression (Kendall's correction of the bias of its coefficient; the variance of the
    mean by Bartlett's formula).

    Args:
        differences: of two or more pairs, in their order.
    """
    return _spread(tuple(float(one) for one in differences))


@functools.lru_cache(maxsize=64)
def _spread(differences: tuple[float, ...]) -> float:
    """Each look asks again for those of all looks before it."""
    values = np.asarray(differences, dtype=float)
    count, own = len(values), float(values.std(ddof=1))
    if count < LEAST_PAIRS or not own:
        return own
    away = values - values.mean()
    alike = float(away[1:] @ away[:-1]) / float(away @ away)
    if (alike + 1 / count) * math.sqrt(count) < ALIKE:
        return own
    kept = min((alike * count + 1) / (count - 4), MOST_ALIKE)
    lags = np.arange(1, count)
    more = 1 + 2 * float((1 - lags / count) @ kept**lags)
    return own * math.sqrt(more * (count - 1) / (count - more))


def read(plan: Plan, differences: Sequence[float], look: int) -> Reading:
    """What the pairs of a look show.

    Args:
        plan: of the looks.
        differences: of at least as many pairs as the look has.
        look: its index.
    """
    count = plan.looks[look]
    mean = float(np.mean(differences[:count]))
    reach = plan.boundaries[look] * plan.presumed(differences, look) / math.sqrt(count)
    return Reading(is_crossed=abs(mean) > reach, low=mean - reach, high=mean + reach)


def estimate(
    plan: Plan, differences: Sequence[float], look: int, *, alpha: float = ALPHA
) -> Estimate:
    """The difference, where the look at hand was the last one.

    Args:
        plan: of the looks.
        differences: of at least as many pairs as the look has, two or more.
        look: its index.
        alpha: one minus the interval's confidence.
    """
    ended = Ended.of(plan, differences, look)
    mean, error = ended.mean, ended.error
    if not error:
        return Estimate(value=mean, low=mean, high=mean)
    reach = _FARTHEST * error * max(1.0, _student(2.0, ended.count - 1) / 2.0)

    def where(share: float) -> float:
        low, high = mean - reach, mean + reach
        if ended.tail(low) >= share:  # beyond all doubt
            return low
        if ended.tail(high) <= share:
            return high
        return float(
            optimize.brentq(lambda at: ended.tail(at) - share, low, high, xtol=1e-5 * error)
        )

    return Estimate(value=where(0.5), low=where(alpha / 2), high=where(1 - alpha / 2))


def spent(share: float, alpha: float = ALPHA) -> float:
    """Error that may be spent, both directions together, when `share` of the pairs are there.

    Lan and DeMets, the first of their examples, with half of the error for each direction.
    """
    if share >= 1.0:
        return alpha
    outer = -float(special.ndtri(alpha / 4))
    return 4 * float(special.ndtr(-outer / math.sqrt(share)))


@functools.lru_cache(maxsize=256)
def _boundaries(at: tuple[int, ...], most: int, alpha: float) -> tuple[float, ...]:
    found: list[float] = []
    before = 0.0
    for index, count in enumerate(at):
        is_last = index == len(at) - 1
        now = alpha if is_last else min(alpha, spent(count / most, alpha))
        part = max(now - before, 1e-12) / 2
        before = max(before, now)
        density = _Density(at[:index], tuple(found), 0.0)
        found.append(
            float(
                optimize.brentq(lambda z, d=density, n=count, p=part: d.beyond(n, z) - p, 0.0, 9.0)
            )
        )
    return tuple(found)


def _upper(at: tuple[int, ...], boundaries: tuple[float, ...], z: float, drift: float) -> float:
    chance = 0.0
    density = _Density((), (), drift)
    for count, boundary in zip(at, boundaries, strict=False):
        chance += density.beyond(count, boundary)
        density = density.after(count, boundary)
    return min(1.0, chance + density.beyond(at[-1], z))


class _Density:
    """Of the sum of the differences, in standard deviations, where no boundary was crossed so far."""

    def __init__(self, at: tuple[int, ...], boundaries: tuple[float, ...], drift: float) -> None:
        self._drift = drift
        self._count = 0
        self._sums: Array = np.zeros(1)
        self._weights: Array = np.ones(1)
        for count, boundary in zip(at, boundaries, strict=True):
            self._go_on(count, boundary)

    def after(self, count: int, boundary: float) -> _Density:
        """With one more look."""
        new = _Density((), (), self._drift)
        new._count, new._sums, new._weights = self._count, self._sums, self._weights
        new._go_on(count, boundary)
        return new

    def beyond(self, count: int, z: float) -> float:
        """Chance that nothing was crossed before, and the statistic of `count` pairs is above `z`."""
        step = count - self._count
        away = z * math.sqrt(count) - self._sums - self._drift * step
        return float(self._weights @ special.ndtr(-away / math.sqrt(step)))

    def _go_on(self, count: int, boundary: float) -> None:
        step = count - self._count
        nodes, weights = _legendre()
        reach = boundary * math.sqrt(count)
        sums = reach * nodes
        away = (sums[:, None] - self._sums - self._drift * step) / math.sqrt(step)
        density = np.exp(-0.5 * away**2) @ self._weights / math.sqrt(2 * math.pi * step)
        self._count, self._sums, self._weights = count, sums, reach * weights * density


@functools.lru_cache(maxsize=1)
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return np.asarray(nodes), np.asarray(weights)


def _student(z: float, degrees: float) -> float:
    """The quantile of Student's distribution with the tail of a normal one's `z`."""
    return -float(special.stdtrit(degrees, float(special.ndtr(-z))))


def _normal(t: float, degrees: float) -> float:
    """Inverse of `_student`, for both signs."""
    tail = float(special.stdtr(degrees, -abs(t)))
    z = -float(special.ndtri(max(tail, 1e-300)))
    return math.copysign(z, t)
