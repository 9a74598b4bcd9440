"""Tail latency of evaluations: p99, its interval, and the number of requests behind it.

An interval lies between order statistics: the number of values below the true percentile is
binomial (David and Nagaraja, Order Statistics, section 7.1). An end is None unless the extreme
value lies beyond the true percentile with 99 % probability, which takes 459 values for p99
(MLPerf's earliest stop), 90 for p95, and 7 for p50.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence

from scipy import special

from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import MIN_FOR_P99, Measurement

SHARE = 0.99
OUTSIDE = 0.025
EXTREME = 0.99


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TailLatency:
    """The p99 of one or several evaluations."""

    value_ms: float
    """The p99, or NaN if not reportable."""
    interval: Interval
    """95 % interval, valid for these evaluations only."""
    effective: float
    requests: int
    why_not: str = ""

    @property
    def is_reportable(self) -> bool:
        """Whether the p99 can be reported."""
        return not self.why_not


def of_evaluation(measurement: Measurement) -> TailLatency:
    """Return the tail latency of one evaluation."""
    why = "" if measurement.has_p99 else too_few(measurement)
    return TailLatency(
        value_ms=measurement.reportable_p99_ms,
        interval=UNKNOWN if why else measurement.p99_interval,
        effective=measurement.effective,
        requests=measurement.requests,
        why_not=why,
    )


def pool_tails(measurements: Sequence[Measurement]) -> TailLatency:
    """Return the tail latency of all evaluations' requests together."""
    if len(measurements) == 1:
        return of_evaluation(measurements[0])
    effective = sum(one.effective for one in measurements)
    requests = sum(one.requests for one in measurements)
    histograms = [one.histogram for one in measurements if one.histogram is not None]
    why = ""
    if not measurements:
        why = "not measured"
    elif len(histograms) < len(measurements):
        why = "these evaluations were recorded by an older version, without the data to pool them"
    elif effective < MIN_FOR_P99:
        why = few(effective, requests)
    if why:
        return TailLatency(
            value_ms=math.nan,
            interval=UNKNOWN,
            effective=effective,
            requests=requests,
            why_not=why,
        )
    together = LatencyHistogram.merge(histograms)
    low, high = ranks_of(len(together), SHARE, effective=effective)
    return TailLatency(
        value_ms=together.quantile_ms(SHARE),
        interval=Interval(
            low=None if low is None else together.at_rank_ms(low),
            high=None if high is None else together.at_rank_ms(high),
        ),
        effective=effective,
        requests=requests,
    )


def few(effective: float, requests: int) -> str:
    """Explain that there are too few requests for a p99."""
    return (
        f"p99 rests on {effective:,.0f} effective requests (of {requests:,}), under {MIN_FOR_P99}"
    )


def too_few(measurement: Measurement) -> str:
    """Explain why there is no p99, and how long to measure for one."""
    seconds = seconds_for(MIN_FOR_P99, effective=measurement.effective, seconds=measurement.seconds)
    return (
        f"{few(measurement.effective, measurement.requests)}: measure each evaluation for longer "
        f"(--seconds {seconds:g})"
    )


def seconds_for(least: int, *, effective: float, seconds: float) -> float:
    """Return the seconds likely to give `least` effective requests, with a third to spare."""
    wanted = 4 / 3 * seconds * least / max(effective, 1.0)
    return float(math.ceil(wanted)) if wanted >= 1 else math.ceil(10 * wanted) / 10


def interval_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Return the ranks (from 1) of the order statistics around the percentile."""
    low: int | None = None
    if 1 - (1 - share) ** count >= EXTREME:
        # P(low-th value above the percentile) = P(fewer than `low` values below it).
        low = _first(count, lambda rank: special.bdtr(rank, count, share) > OUTSIDE)
    high: int | None = None
    if 1 - share**count >= EXTREME:
        high = _first(count, lambda rank: special.bdtrc(rank - 1, count, share) <= OUTSIDE)
    return low, high


def ranks_of(
    count: int, share: float, *, effective: float | None = None
) -> tuple[int | None, int | None]:
    """Return `interval_ranks` for the effective number of requests, scaled to `count`."""
    worth = count if effective is None else min(count, max(0, math.floor(effective)))
    if not worth:
        return None, None
    low, high = interval_ranks(worth, share)
    stretch = count / worth
    return (
        None if low is None else math.floor((low - 1) * stretch) + 1,
        None if high is None else min(count, math.ceil(high * stretch - 1e-9)),
    )


def _first(count: int, is_reached: Callable[[int], bool]) -> int | None:
    ranks = range(1, count + 1)
    place = bisect.bisect_left(ranks, True, key=is_reached)
    return ranks[place] if place < count else None
