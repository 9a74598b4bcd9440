"""Clipper's metrics and their JSON report, in which every number is a string.

Meters are decaying averages over 1, 5 and 15 minutes; histograms keep 4096 samples. Not
thread-safe.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

SAMPLE = 4096
_TICK_S = 5.0
_MINUTES = (1, 5, 15)
_ALPHAS = tuple(1.0 - math.exp(-_TICK_S / (60.0 * minutes)) for minutes in _MINUTES)
_MAX_TICKS = 10_000
"""Number of idle ticks (about fourteen hours) after which a rate counts as zero."""


class Counter:
    """A count of events."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def increment(self, by: int = 1) -> None:
        """Add to the count."""
        self.count += by

    def report(self, _now_s: float) -> dict[str, str]:
        """Return Clipper's fields."""
        return {"count": str(self.count)}


class Ratio:
    """The ratio of two counts."""

    __slots__ = ("numerator", "of")

    def __init__(self) -> None:
        self.numerator = 0
        self.of = 0

    def increment(self, numerator: int, of: int = 1) -> None:
        """Add to both counts."""
        self.numerator += numerator
        self.of += of

    def report(self, _now_s: float) -> dict[str, str]:
        """Return Clipper's fields; the ratio is NaN without counts."""
        return {"ratio": _number(self.numerator / self.of) if self.of else "nan"}


class Meter:
    """Rate of events per second."""

    __slots__ = ("_rates", "_start_s", "_ticked_s", "_uncounted", "count")

    def __init__(self, now_s: float) -> None:
        self.count = 0
        self._start_s = now_s
        self._ticked_s = now_s
        self._uncounted = 0
        self._rates: list[float] | None = None

    def mark(self, now_s: float, events: int = 1) -> None:
        """Record events."""
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
        idle = min(ticks - 1, _MAX_TICKS)
        self._rates = [
            old * (1.0 - alpha) ** idle for old, alpha in zip(self._rates, _ALPHAS, strict=True)
        ]

    def report(self, now_s: float) -> dict[str, str]:
        """Return Clipper's fields; rates that are not known yet are -1."""
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
    """A uniform sample of all values."""

    __slots__ = ("_rng", "_sample", "_seen", "unit")

    def __init__(self, unit: str, rng: random.Random) -> None:
        self.unit = unit
        self._rng = rng
        self._sample: list[float] = []
        self._seen = 0

    def insert(self, value: float) -> None:
        """Add a value by reservoir sampling."""
        self._seen += 1
        if len(self._sample) < SAMPLE:
            self._sample.append(value)
            return
        place = int(self._rng.random() * self._seen)
        if place < SAMPLE:
            self._sample[place] = value

    def report(self, _now_s: float) -> dict[str, str]:
        """Return Clipper's fields, which are zero without values."""
        values = np.array(self._sample or [0.0])
        ranks = np.quantile(values, (0.5, 0.95, 0.99), method="weibull")  # place: rank x (n + 1)
        numbers = {
            "min": values.min(),
            "max": values.max(),
            "mean": values.mean(),
            "std_dev": values.std(),
            **dict(zip(("p50", "p95", "p99"), ranks.tolist(), strict=True)),
        }
        return {
            "unit": self.unit,
            "size": str(len(self._sample)),
            **{name: _number(number) for name, number in numbers.items()},
        }


class Registry:
    """Metrics by kind and name."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._counters: dict[str, Counter] = {}
        self._ratios: dict[str, Ratio] = {}
        self._meters: dict[str, Meter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter with this name, created if new."""
        return self._counters.get(name) or self._counters.setdefault(name, Counter())

    def ratio(self, name: str) -> Ratio:
        """Return the ratio with this name, created if new."""
        return self._ratios.get(name) or self._ratios.setdefault(name, Ratio())

    def meter(self, name: str, now_s: float) -> Meter:
        """Return the meter with this name; a new one starts at `now_s`."""
        return self._meters.get(name) or self._meters.setdefault(name, Meter(now_s))

    def histogram(self, name: str, unit: str) -> Histogram:
        """Return the histogram with this name, created if new."""
        known = self._histograms.get(name)
        return known or self._histograms.setdefault(name, Histogram(unit, self._rng))

    def report(self, now_s: float) -> dict[str, Any]:
        """Return the body of Clipper's `GET /metrics`."""
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
