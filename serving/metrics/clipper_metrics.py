"""Clipper's kinds of metrics, and their report in its JSON: every number is a string.

Counters, ratios, meters (rates, with decaying averages over 1, 5 and 15 minutes) and histograms
(a sample of 4096 values). They are made once by name and then kept by whoever writes them, so that
the request path looks nothing up. Times and randomness are arguments. Written and read by the event
loop's thread alone.
"""

from __future__ import annotations

import math
import random
from typing import Any

SAMPLE = 4096
"""Values that a histogram keeps."""
_TICK_S = 5.0
_MINUTES = (1, 5, 15)
_ALPHAS = tuple(1.0 - math.exp(-_TICK_S / (60.0 * minutes)) for minutes in _MINUTES)
_LONGEST_TICKS = 10_000
"""Ticks after which a rate without events is nothing: some fourteen hours."""


class Counter:
    """How often."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def increment(self, by: int = 1) -> None:
        """So many more."""
        self.count += by

    def report(self, _now_s: float) -> dict[str, str]:
        """Clipper's fields."""
        return {"count": str(self.count)}


class Ratio:
    """How many of how many."""

    __slots__ = ("numerator", "of")

    def __init__(self) -> None:
        self.numerator = 0
        self.of = 0

    def increment(self, numerator: int, of: int = 1) -> None:
        """`numerator` more, out of `of` more."""
        self.numerator += numerator
        self.of += of

    def report(self, _now_s: float) -> dict[str, str]:
        """Clipper's fields; nothing of nothing is NaN, as there."""
        return {"ratio": _number(self.numerator / self.of) if self.of else "nan"}


class Meter:
    """Events per second."""

    __slots__ = ("_rates", "_start_s", "_ticked_s", "_uncounted", "count")

    def __init__(self, now_s: float) -> None:
        self.count = 0
        self._start_s = now_s
        self._ticked_s = now_s
        self._uncounted = 0
        self._rates: list[float] | None = None

    def mark(self, now_s: float, events: int = 1) -> None:
        """Events that happened now."""
        if now_s - self._ticked_s >= _TICK_S:
            self._tick(now_s)
        self.count += events
        self._uncounted += events

    def _tick(self, now_s: float) -> None:
        ticks = int((now_s - self._ticked_s) / _TICK_S)
        self._ticked_s += ticks * _TICK_S
        rate, self._uncounted = self._uncounted / _TICK_S, 0
        if self._rates is None:
            self._rates = [rate] * len(_ALPHAS)
        else:
            self._rates = [
                old + alpha * (rate - old) for old, alpha in zip(self._rates, _ALPHAS, strict=True)
            ]
        idle = min(ticks - 1, _LONGEST_TICKS)
        self._rates = [
            old * (1.0 - alpha) ** idle for old, alpha in zip(self._rates, _ALPHAS, strict=True)
        ]

    def report(self, now_s: float) -> dict[str, str]:
        """Clipper's fields; a rate that is not known yet is -1, as there."""
        if now_s - self._ticked_s >= _TICK_S:
            self._tick(now_s)
        seconds = now_s - self._start_s
        rates = self._rates or [-1.0] * len(_ALPHAS)
        return {
            "unit": "events per second",
            "rate": _number(self.count / seconds if seconds > 0 else 0.0),
            **{
                f"rate_{minutes}min": _number(rate)
                for minutes, rate in zip(_MINUTES, rates, strict=True)
            },
        }


class Histogram:
    """A fair sample of all values, and what it says of them."""

    __slots__ = ("_rng", "_sample", "_seen", "unit")

    def __init__(self, unit: str, rng: random.Random) -> None:
        self.unit = unit
        self._rng = rng
        self._sample: list[float] = []
        self._seen = 0

    def insert(self, value: float) -> None:
        """One more value; when the sample is full it takes the place of another one by chance."""
        self._seen += 1
        if len(self._sample) < SAMPLE:
            self._sample.append(value)
            return
        place = int(self._rng.random() * self._seen)
        if place < SAMPLE:
            self._sample[place] = value

    def report(self, _now_s: float) -> dict[str, str]:
        """Clipper's fields; an empty one is all zeros."""
        values = sorted(self._sample)
        size = len(values)
        mean = math.fsum(values) / size if size else 0.0
        variance = math.fsum((value - mean) ** 2 for value in values) / size if size else 0.0
        return {
            "unit": self.unit,
            "size": str(size),
            "min": _number(values[0] if size else 0),
            "max": _number(values[-1] if size else 0),
            "mean": _number(mean),
            "std_dev": _number(math.sqrt(variance)),
            "p50": _number(percentile(values, 0.50)),
            "p95": _number(percentile(values, 0.95)),
            "p99": _number(percentile(values, 0.99)),
        }


def percentile(values: list[float], rank: float) -> float:
    """Percentile of sorted values between two of them by weight, rank x (n + 1); 0 of none."""
    if not values:
        return 0.0
    place = min(max(rank * (len(values) + 1), 1.0), float(len(values)))
    below = math.floor(place)
    value = values[below - 1]
    if below < len(values):
        value += (place - below) * (values[below] - value)
    return value


class Registry:
    """All metrics of a server, by kind and name."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._counters: dict[str, Counter] = {}
        self._ratios: dict[str, Ratio] = {}
        self._meters: dict[str, Meter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """The counter of a name; made when it is first asked for."""
        return self._counters.get(name) or self._counters.setdefault(name, Counter())

    def ratio(self, name: str) -> Ratio:
        """The ratio of a name."""
        return self._ratios.get(name) or self._ratios.setdefault(name, Ratio())

    def meter(self, name: str, now_s: float) -> Meter:
        """The meter of a name, which starts now if it is new."""
        return self._meters.get(name) or self._meters.setdefault(name, Meter(now_s))

    def histogram(self, name: str, unit: str) -> Histogram:
        """The histogram of a name."""
        known = self._histograms.get(name)
        return known or self._histograms.setdefault(name, Histogram(unit, self._rng))

    def forget(self, prefix: str) -> None:
        """Drop all whose names begin so: what they measured is gone."""
        for kind in (self._counters, self._ratios, self._meters, self._histograms):
            for name in [name for name in kind if name.startswith(prefix)]:
                del kind[name]

    def report(self, now_s: float) -> dict[str, Any]:
        """The body of Clipper's `GET /metrics`."""
        kinds: dict[str, Any] = {
            "counters": self._counters,
            "ratio_counters": self._ratios,
            "meters": self._meters,
            "histograms": self._histograms,
        }
        return {
            kind: [{name: metric.report(now_s)} for name, metric in metrics.items()]
            for kind, metrics in kinds.items()
        }


def _number(value: float) -> str:
    return f"{value:.12g}"
