"""What the data of a figure says, as numbers: clusters, a line's fit, gains with intervals.

In: rows of `records`. Out: plain values for pictures and tables. Pure.

Intervals of a ratio are those of rounds side by side, and of units where several are joined: two
winners' rounds say nothing of another search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tuner.measurement import sequential
from tuner.values.interval import Interval

DEEP = 0.7
"""Two peaks of the density are two clusters where it falls between them below this share of the lower."""
LEAST_SHARE = 0.03
"""A smaller group is no cluster but a few stragglers."""


RESAMPLES = 2_000
STEP = 5
"""Guided trials of one repeat of the study's other rule, which ends when the best seen stays."""


class Cluster(NamedTuple):
    """A group of round trips."""

    median_ms: float
    share: float


class Fit(NamedTuple):
    """mean = base + slope x concurrency, by least squares over all launches."""

    base_ms: float
    slope_ms: float
    r_squared: float
    worst: float
    """Largest distance of a concurrency's mean from the line, as a share of that mean."""
    worst_at: int


class Trend(NamedTuple):
    """Spearman's rank correlation, its bootstrap interval over units, and its permutation p-value."""

    rho: float
    interval: Interval
    p: float


class Ratio(NamedTuple):
    """One winner over another; above 1 the second is better."""

    value: float
    interval: Interval

    @property
    def outcome(self) -> int:
        """1 if the second is shown to be better, -1 if worse, otherwise 0."""
        assert self.interval.low is not None
        assert self.interval.high is not None
        return (self.interval.low > 1) - (self.interval.high < 1)


def clusters(took_ms: Sequence[float]) -> list[Cluster]:
    """Groups of round trips: peaks of a kernel density of their logarithms, with deep valleys between.

    The bandwidth is half of Silverman's, whose own is for one peak (Silverman, Density Estimation for
    Statistics and Data Analysis, section 3.4).
    """
    logs = np.log(np.asarray(took_ms, dtype=float))
    if len(logs) < 20 or np.ptp(logs) == 0:
        return [Cluster(float(np.median(took_ms)), 1.0)]
    spread = min(float(logs.std()), float(stats.iqr(logs)) / 1.34) or float(logs.std())
    width = 0.45 * spread * len(logs) ** -0.2
    grid = np.linspace(logs.min() - 3 * width, logs.max() + 3 * width, 512)
    density = np.exp(-0.5 * ((grid[:, None] - logs[None, :]) / width) ** 2).sum(axis=1)
    cuts = [grid[0], *(grid[place] for place in _valleys(density)), grid[-1]]
    found = []
    for low, high in itertools.pairwise(cuts):
        inside = logs[(logs >= low) & (logs < high)]
        if len(inside) >= LEAST_SHARE * len(logs):
            median_ms = float(np.exp(np.median(inside)))
            found.append(Cluster(median_ms, len(inside) / len(logs)))
    return found


def _valleys(density: NDArray[np.float64]) -> list[int]:
    """Places of the deep valleys: shallow ones are given up, the shallowest first."""
    inner = range(1, len(density) - 1)
    peaks = [i for i in inner if density[i - 1] < density[i] >= density[i + 1]]
    while len(peaks) > 1:
        lows = [a + int(density[a:b].argmin()) for a, b in itertools.pairwise(peaks)]
        depths = [
            density[low] / min(density[a], density[b])
            for low, a, b in zip(lows, peaks[:-1], peaks[1:], strict=True)
        ]
        shallow = int(np.argmax(depths))
        if depths[shallow] < DEEP:
            return lows
        pair = peaks[shallow : shallow + 2]
        peaks.remove(min(pair, key=lambda place: float(density[place])))
    return []


def by_key(rows: Sequence[Mapping[str, Any]], name: str) -> dict[Any, list[Mapping[str, Any]]]:
    """Launches that were measured, by one value of their key, ascending."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == "ok":
            found.setdefault(row["key"][name], []).append(row)
    return dict(sorted(found.items()))


def fit(by_concurrency: Mapping[float, Sequence[Mapping[str, Any]]]) -> Fit | None:
    """The straight line through the means; None under three concurrencies."""
    if len(by_concurrency) < 3:
        return None
    points = [(n, row["mean_ms"]) for n, rows in by_concurrency.items() for row in rows]
    line = stats.linregress([n for n, _ in points], [mean for _, mean in points])
    residuals = {
        n: (mean := float(np.mean([row["mean_ms"] for row in rows])))
        and abs(mean - line.intercept - line.slope * n) / mean
        for n, rows in by_concurrency.items()
    }
    worst_at = max(residuals, key=lambda n: residuals[n])
    return Fit(
        base_ms=float(line.intercept),
        slope_ms=float(line.slope),
        r_squared=float(line.rvalue**2),
        worst=residuals[worst_at],
        worst_at=int(worst_at),
    )


def best_so_far(values: Sequence[float | None]) -> list[float]:
    """Lowest value up to each trial; NaN before the first that worked."""
    known = np.array([math.inf if value is None else value for value in values])
    lowest = np.minimum.accumulate(known)
    return [float(value) if math.isfinite(value) else math.nan for value in lowest]


def stays_at(trials: Sequence[Any], objectives: Sequence[float | None]) -> int:
    """Return the trials after which a repeat of `STEP` left the configuration with the best value.

    Args:
        trials: the configurations tried, of which the first `STEP` were initial ones.
        objectives: their values, to minimise; None for a failure.
    """
    before: Any = None
    for count in range(STEP, len(trials) + 1, STEP):
        known = [(value, place) for place, value in enumerate(objectives[:count]) if value]
        now = trials[min(known)[1]] if known else None
        if count > STEP and now is not None and now == before:
            return count
        before = now
    return len(trials)


def as_studied(row: Mapping[str, Any]) -> float | None:
    """Best single measurements: half the budget at random over all of it by GPy."""
    found = row["searches"]
    random = [value for value in found["random"]["objectives"][: row["trials"] // 2] if value]
    guided = [value for value in found["gpy"]["objectives"] if value]
    return min(random) / min(guided) if random and guided else None


def ratio(
    row: Mapping[str, Any], first: str, second: str, of: Callable[[Sequence[float]], float]
) -> Ratio | None:
    """First winner over second in the rounds of one unit; None under two rounds.

    Args:
        row: a unit of searches.
        first: role of the winner above.
        second: role of the winner below.
        of: figure of a round, from its mean, p5, p95 and p99.
    """
    rounds = row["rounds"]
    pairs = zip(rounds.get(first, ()), rounds.get(second, ()), strict=False)
    logs = [math.log(of(a) / of(b)) for a, b in pairs if a and b]
    if len(logs) < 2:
        return None
    found = sequential.estimate(logs)
    return Ratio(
        math.exp(found.value), Interval(low=math.exp(found.low), high=math.exp(found.high))
    )


def joined(values: Sequence[float]) -> Ratio | None:
    """Geometric mean over units with its interval; None under two of them."""
    if len(values) < 2:
        return None
    logs = np.log(values)
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * float(stats.sem(logs))
    mean = float(logs.mean())
    ends = Interval(low=math.exp(mean - reach), high=math.exp(mean + reach))
    return Ratio(math.exp(mean), ends)


def apart(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """First geometric mean over second with Welch's interval; None under two units a side."""
    if min(len(first), len(second)) < 2:
        return None
    logs = np.log(first), np.log(second)
    parts = [float(one.var(ddof=1)) / len(one) for one in logs]
    error = math.sqrt(sum(parts))
    degrees = (
        sum(parts) ** 2
        / sum(part**2 / (len(one) - 1) for part, one in zip(parts, logs, strict=True))
        if error
        else 1.0
    )
    reach = float(stats.t.ppf(0.975, degrees)) * error
    middle = float(logs[0].mean() - logs[1].mean())
    ends = Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))
    return Ratio(math.exp(middle), ends)


def trend(pairs: Sequence[tuple[float, float]]) -> Trend | None:
    """Rank correlation of a value with the concurrency; None under four concurrencies or one value."""
    if len({n for n, _ in pairs}) < 4:
        return None
    values = np.array(pairs, dtype=float)
    rng = np.random.default_rng(0)
    same = np.broadcast_to(values.T[:, None], (2, RESAMPLES, len(values)))
    shuffled = _rho(same[0], rng.permuted(same[1], axis=1))
    places = rng.integers(len(values), size=(RESAMPLES, len(values)))
    drawn = _rho(*(values[places, side] for side in (0, 1)))
    rho = float(_rho(*(same[:, :1]))[0])
    if math.isnan(rho):
        return None
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    beyond = int(np.sum(np.abs(shuffled) >= abs(rho) - 1e-12))
    return Trend(rho, Interval(low=float(low), high=float(high)), (1 + beyond) / (1 + RESAMPLES))


def _rho(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank correlation of each row, NaN where a side is constant."""
    away = [one - one.mean(axis=1, keepdims=True) for one in (_ranks(first), _ranks(second))]
    sums = np.sqrt((away[0] ** 2).sum(axis=1) * (away[1] ** 2).sum(axis=1))
    sums[sums == 0] = np.nan
    return np.asarray((away[0] * away[1]).sum(axis=1) / sums)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(stats.rankdata(values, axis=1))
