"""The tail of launches: its p99, the interval, and the requests that they rest on.

In: measurements. Out: a `Tail`, which says why where there is no figure; and the ranks of the order
statistics that enclose a percentile. Pure.

Of several launches the p99 is that of all their requests together, from their histograms: the mean of
their p99s is another figure, and too low wherever launches differ.

An interval lies between two order statistics: the number of values under the true percentile is binomial
(David and Nagaraja, Order Statistics, section 7.1). An end is None where even the extreme value may well
lie on the wrong side of the true percentile: where the sample's maximum reaches it with less than 99 %
probability. For p99 that is under 459 values, the number at which MLPerf stops early at the soonest; for
p95 under 90, for p50 under 7.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from scipy import special

from tuner.histogram import Histogram
from tuner.values import LEAST_FOR_P99, UNKNOWN, Interval, Measurement

SHARE = 0.99
OUTSIDE = 0.025
"""Probability on either side of an interval."""
EXTREME = 0.99
"""Probability with which a sample's extreme must lie beyond the true percentile before an end is given."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The p99 of some launches."""

    value_ms: float
    """NaN where it is refused."""
    interval: Interval
    """95 %, of these launches; it knows nothing of others."""
    effective: float
    """Independent requests that it rests on."""
    requests: int
    why_not: str = ""
    """Why it is refused; empty where it is not."""

    @property
    def is_told(self) -> bool:
        """Whether there is a figure."""
        return not self.why_not


def of_one(measurement: Measurement) -> Tail:
    """That of one launch."""
    why = "" if measurement.has_p99 else too_few(measurement)
    return Tail(
        value_ms=measurement.told_p99_ms,
        interval=UNKNOWN if why else measurement.p99_interval,
        effective=measurement.effective,
        requests=measurement.requests,
        why_not=why,
    )


def pooled(measurements: Sequence[Measurement]) -> Tail:
    """That of the requests of all of them together."""
    if len(measurements) == 1:
        return of_one(measurements[0])
    effective = sum(one.effective for one in measurements)
    requests = sum(one.requests for one in measurements)
    histograms = [one.histogram for one in measurements if one.histogram is not None]
    why = ""
    if not measurements:
        why = "not measured"
    elif len(histograms) < len(measurements):
        why = "an older version kept these launches without what puts them together"
    elif effective < LEAST_FOR_P99:
        why = few(effective, requests)
    if why:
        return Tail(
            value_ms=math.nan,
            interval=UNKNOWN,
            effective=effective,
            requests=requests,
            why_not=why,
        )
    together = Histogram.merged(histograms)
    low, high = ranks_of(len(together), SHARE, effective=effective)
    return Tail(
        value_ms=together.quantile_ms(SHARE),
        interval=Interval(
            low=None if low is None else together.at_rank_ms(low),
            high=None if high is None else together.at_rank_ms(high),
        ),
        effective=effective,
        requests=requests,
    )


def few(effective: float, requests: int) -> str:
    """That so many requests are too few."""
    return (
        f"p99 rests on {effective:,.0f} effective requests (of {requests:,}), under {LEAST_FOR_P99}"
    )


def too_few(measurement: Measurement) -> str:
    """Why a launch has no p99, and how long it would have to be."""
    seconds = seconds_for(
        LEAST_FOR_P99, effective=measurement.effective, seconds=measurement.seconds
    )
    return (
        f"{few(measurement.effective, measurement.requests)}: measure each launch for longer "
        f"(--seconds {seconds:g})"
    )


def seconds_for(least: int, *, effective: float, seconds: float) -> float:
    """How long a phase is likely to give `least` effective requests, with a third to spare.

    Args:
        least: wanted.
        effective: what a phase of `seconds` gave.
        seconds: its length.
    """
    wanted = 4 / 3 * seconds * least / max(effective, 1.0)
    return float(math.ceil(wanted)) if wanted >= 1 else math.ceil(10 * wanted) / 10


def interval_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that enclose the percentile; None where there is none."""
    low: int | None = None
    if 1 - (1 - share) ** count >= EXTREME:
        # P(the low-th value lies above the percentile) = P(fewer than `low` values under it).
        low = _first(count, lambda rank: special.bdtr(rank, count, share) > OUTSIDE)
    high: int | None = None
    if 1 - share**count >= EXTREME:
        high = _first(count, lambda rank: special.bdtrc(rank - 1, count, share) <= OUTSIDE)
    return low, high


def ranks_of(
    count: int, share: float, *, effective: float | None = None
) -> tuple[int | None, int | None]:
    """`interval_ranks` of the effective number of values, at the same shares of all `count` of them."""
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
    """The smallest rank from 1 to count at which a condition, false and then true, holds."""
    low, high = 1, count + 1
    while low < high:
        middle = (low + high) // 2
        if is_reached(middle):
            high = middle
        else:
            low = middle + 1
    return low if low <= count else None
