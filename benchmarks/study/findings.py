"""What the data of a figure says, as numbers: clusters, a line's fit, gains with intervals.

In: rows of `records`. Out: plain values for pictures and tables. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tuner.measurement.comparison import ratio_interval
from tuner.values.interval import Interval

DEEP = 0.7
"""Two peaks of the density are two clusters where it falls between them below this share of the lower."""
LEAST_SHARE = 0.03
"""A smaller group is no cluster but a few stragglers."""


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


class Gain(NamedTuple):
    """Random over guided: above 1 the guided search found the better configuration."""

    as_studied: float
    """Best single measurements: half the budget at random against all of it, guided."""
    fair: float
    """All of the budget each, winners re-measured."""
    interval: Interval


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


def by_key(rows: Sequence[Mapping[str, Any]], name: str) -> dict[float, list[dict[str, Any]]]:
    """Rows that were measured, by one value of their key, ascending."""
    found: dict[float, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("status", "ok") == "ok":
            found.setdefault(row["key"][name], []).append(dict(row))
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


def gain(row: Mapping[str, Any]) -> Gain | None:
    """What the guided search gained in one row of `searches`; None where no pair was re-measured."""
    half = [value for value in row["objectives"]["random"][: row["trials"] // 2] if value]
    guided = [value for value in row["objectives"]["guided"] if value]
    if len(row["remeasured"].get("guided", ())) < 2 or not half or not guided:
        return None
    fair, interval = ratio_interval(row["remeasured"]["random"], row["remeasured"]["guided"])
    return Gain(as_studied=min(half) / min(guided), fair=fair, interval=interval)


def trend(by_concurrency: Mapping[float, Sequence[float]]) -> tuple[float, float] | None:
    """Spearman's rank correlation of a gain with the concurrency, and its p-value; None under four points."""
    pairs = [(n, value) for n, values in by_concurrency.items() for value in values]
    if len(by_concurrency) < 4:
        return None
    found = stats.spearmanr([n for n, _ in pairs], [value for _, value in pairs])
    return float(found.statistic), float(found.pvalue)
