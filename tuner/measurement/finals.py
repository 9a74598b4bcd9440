"""Which of a few configurations to hold for the best, by launches that stood side by side.

In: what the search believes of each (mean and covariance of the logarithm of the objective), their
launches in rounds, and an order in which to prefer those that cannot be told apart. Out: a choice, and how
each of the others compares with it. Pure.

The choice uses both, the belief and the launches. How the others compare is read from the launches
alone: intervals of all of them together (Bonferroni), over the spread that the rounds leave when
configurations and rounds are taken out. A round's launches share what the machine did meanwhile, so a
common shift tells nothing.

Tied with the chosen one is what the launches cannot tell from it, and the belief puts within `CLOSE`
of it. Of all those the first in order of preference is chosen: a few per cent that nobody can show
are no reason to reserve another core.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.values import Interval

Array = NDArray[np.float64]

CLOSE = math.log(1.03)
"""Difference of logarithms that is too small to matter: 3 %."""
PRIOR_DEGREES = 8.0
"""Weight of the spread that the search found for a launch, against that of the rounds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """What a search believes of some configurations."""

    mean: Array  # (k,) of the logarithm of the objective, minimised
    covariance: Array  # (k, k)
    launch_sd: float
    """Standard deviation of one launch about its configuration's mean, on the log scale."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What came out."""

    chosen: int
    """Position of the best."""
    ratios: tuple[float, ...]
    """Of each configuration's objective over that of the chosen one; 1 of itself."""
    intervals: tuple[Interval, ...]
    tied: tuple[bool, ...]
    """Which could as well have been chosen, the chosen one among them."""


def choose(belief: Belief, values: Array, preference: Sequence[object]) -> Choice:
    """Choose.

    Args:
        belief: of k configurations.
        values: (rounds, k) objectives of the launches, minimised and positive; may have no row.
        preference: of each configuration, comparable; the lowest is preferred among tied ones.
    """
    logs = np.log(values)
    updated = _updated(belief, logs)
    leader = int(np.argmin(updated))
    spread = _Spread.of(logs, belief.launch_sd)
    tied = [
        one == leader
        or bool(updated[one] - updated[leader] <= CLOSE and spread.is_open(leader, one))
        for one in range(len(updated))
    ]
    chosen = min(
        (one for one in range(len(tied)) if tied[one]),
        key=lambda one: (preference[one], updated[one]),
    )
    ratios, intervals = zip(
        *(spread.ratio(one, chosen) for one in range(len(updated))), strict=True
    )
    return Choice(chosen=chosen, ratios=tuple(ratios), intervals=tuple(intervals), tied=tuple(tied))


def launch_sd(logs: Array, presumed: float) -> float:
    """Standard deviation of a launch about its configuration and its round, drawn towards a presumed one.

    Args:
        logs: (rounds, k) logarithms of the objective, one round at least.
        presumed: by the search.
    """
    return _pooled(logs, presumed)[0]


def _pooled(logs: Array, presumed: float) -> tuple[float, float]:
    """The same, and its degrees of freedom."""
    rounds, count = logs.shape
    left = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    degrees = (rounds - 1) * (count - 1) + PRIOR_DEGREES
    variance = (float((left**2).sum()) + PRIOR_DEGREES * presumed**2) / degrees
    return math.sqrt(variance), degrees


def _updated(belief: Belief, logs: Array) -> Array:
    """Means (k,) after the launches; each is right up to a shift that all share."""
    rounds, count = logs.shape
    if not rounds:
        return belief.mean
    known = belief.launch_sd**2 / rounds * np.eye(count) + np.ones((count, count))
    whole = belief.covariance + known + 1e-12 * np.eye(count)
    pull = np.linalg.solve(whole, logs.mean(axis=0) - belief.mean)
    return np.asarray(belief.mean + belief.covariance @ pull)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spread:
    """Means of the launches, and how well they are known."""

    means: Array  # (k,)
    error: float
    """Standard error of a difference of two means."""
    reach: float
    """Standard errors from the middle to the end of an interval, all intervals together."""

    @classmethod
    def of(cls, logs: Array, launch_sd: float) -> _Spread:
        rounds, count = logs.shape
        if not rounds:
            return cls(means=np.zeros(count), error=math.inf, reach=math.inf)
        sd, degrees = _pooled(logs, launch_sd)
        tail = 0.025 / max(1, count - 1)
        return cls(
            means=logs.mean(axis=0),
            error=math.sqrt(2 / rounds) * sd,
            reach=float(special.stdtrit(degrees, 1 - tail)),
        )

    def ratio(self, one: int, other: int) -> tuple[float, Interval]:
        """Of one to the other."""
        if one == other:
            return 1.0, Interval(low=1.0, high=1.0)
        if math.isinf(self.error):
            return math.nan, Interval(low=None, high=None)
        middle, reach = float(self.means[one] - self.means[other]), self.reach * self.error
        return math.exp(middle), Interval(
            low=math.exp(middle - reach), high=math.exp(middle + reach)
        )

    def is_open(self, one: int, other: int) -> bool:
        """Whether the launches leave open which of two is better."""
        if math.isinf(self.error):
            return True
        return abs(float(self.means[one] - self.means[other])) <= self.reach * self.error
