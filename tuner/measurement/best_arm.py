"""Choice of the best among a few configurations evaluated in rounds.

The choice uses the search's posterior and the evaluations; comparisons use only the evaluations,
with simultaneous intervals (Bonferroni) from the residual spread. Of the configurations tied with
the leader and within 3 % of its posterior mean, the most preferred wins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.measurement.sequential import EQUIVALENCE_MARGIN
from tuner.values.interval import Interval

Array = NDArray[np.float64]

PRIOR_DEGREES = 8.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Posterior from a search for some of its configurations."""

    mean: Array  # (k,) of the log objective, minimised
    covariance: Array  # (k, k)
    evaluation_sd: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BestArm:
    """The chosen configuration, and how the others compare with it."""

    chosen: int
    ratios: tuple[float, ...]
    intervals: tuple[Interval, ...]
    tied: tuple[bool, ...]


def choose(posterior: Posterior, values: Array, preference: Sequence[object]) -> BestArm:
    """Choose among k configurations by `values` (rounds, k), positive and minimised.

    Ties go to the lowest `preference`.
    """
    logs = np.log(values)
    updated = _posterior_mean(posterior, logs)
    leader = int(np.argmin(updated))
    means, reach = _comparison(logs, posterior.evaluation_sd)
    is_close = updated - updated[leader] <= EQUIVALENCE_MARGIN
    is_open = np.abs(means[leader] - means) <= reach
    tied = [one == leader or bool(is_close[one] and is_open[one]) for one in range(len(means))]
    chosen = min(
        (one for one in range(len(tied)) if tied[one]),
        key=lambda one: (preference[one], updated[one]),
    )
    found = [_ratio(float(mean - means[chosen]), reach) for mean in means]
    found[chosen] = 1.0, Interval(low=1.0, high=1.0)
    ratios, intervals = zip(*found, strict=True)
    return BestArm(chosen=chosen, ratios=ratios, intervals=intervals, tied=tuple(tied))


def evaluation_sd(logs: Array, presumed: float) -> float:
    """Return the residual sd of logs (rounds, k), shrunk towards the presumed sd."""
    return _pooled_sd(logs, presumed)[0]


def _pooled_sd(logs: Array, presumed: float) -> tuple[float, float]:
    rounds, count = logs.shape
    left = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    degrees = (rounds - 1) * (count - 1) + PRIOR_DEGREES
    variance = (float((left**2).sum()) + PRIOR_DEGREES * presumed**2) / degrees
    return math.sqrt(variance), degrees


def _posterior_mean(posterior: Posterior, logs: Array) -> Array:
    rounds, count = logs.shape
    if not rounds:
        return posterior.mean
    known = posterior.evaluation_sd**2 / rounds * np.eye(count) + np.ones((count, count))
    whole = posterior.covariance + known + 1e-12 * np.eye(count)
    pull = np.linalg.solve(whole, logs.mean(axis=0) - posterior.mean)
    return np.asarray(posterior.mean + posterior.covariance @ pull)


def _comparison(logs: Array, evaluation_sd: float) -> tuple[Array, float]:
    """Return means (k,), and the half width of their differences' simultaneous intervals."""
    rounds, count = logs.shape
    if not rounds:
        return np.zeros(count), math.inf
    sd, degrees = _pooled_sd(logs, evaluation_sd)
    tail = 0.025 / max(1, count - 1)
    reach = float(special.stdtrit(degrees, 1 - tail)) * (math.sqrt(2 / rounds) * sd)
    return logs.mean(axis=0), reach


def _ratio(middle: float, reach: float) -> tuple[float, Interval]:
    if math.isinf(reach):
        return math.nan, Interval(low=None, high=None)
    return math.exp(middle), Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))
