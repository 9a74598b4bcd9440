"""Counters and histograms for the request path, without label lookups or locks."""

from __future__ import annotations

import numpy as np

LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0, 30.0,
)  # fmt: skip

ERROR_BOUNDS_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 1.0)

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


_UNCOUNTED = 1024


class BucketHistogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("_counts", "_uncounted", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)
        self._uncounted: list[float] = []

    @property
    def counts(self) -> list[int]:
        """Number of values in each bucket; the last has no bound."""
        if self._uncounted:
            self._count()
        return self._counts

    def observe(self, value: float) -> None:
        """Record a value."""
        self.sum += value
        self._uncounted.append(value)
        if len(self._uncounted) >= _UNCOUNTED:
            self._count()

    def _count(self) -> None:
        places = np.searchsorted(self.bounds, self._uncounted)
        found: list[int] = np.bincount(places, minlength=len(self._counts)).tolist()
        self._counts = [had + new for had, new in zip(self._counts, found, strict=True)]
        self._uncounted = []

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus's buckets as (upper bound, number of values up to it)."""
        total = 0
        buckets = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
        return buckets


class Counters:
    """Counters for one deployment."""

    def __init__(self) -> None:
        self.responses: dict[int, int] = {}
        """Number of responses by HTTP status; 499 means that the client disconnected."""
        self.latency_s = BucketHistogram(LATENCY_BOUNDS_S)
        self.batch_items = BucketHistogram(tuple(float(bound) for bound in BATCH_BOUNDS))
        self.exec_s = BucketHistogram(LATENCY_BOUNDS_S)
        self.late = 0
        """Number of responses sent after their deadline."""
        self.replica_deaths: dict[str, int] = {}

    def on_replica_death(self, reason: str, _text: str = "") -> None:
        """Record the unexpected exit of a replica."""
        self.replica_deaths[reason] = self.replica_deaths.get(reason, 0) + 1


class PoolCounters:
    """Counters for a shared pool."""

    def __init__(self) -> None:
        self.replica_deaths: dict[str, int] = {}
        self.actions: dict[str, dict[str, int]] = {}
        """Counts by action (`load`, `infer` or `unload`), then by outcome."""
        self.load_s = BucketHistogram(LATENCY_BOUNDS_S)
        self.over_s = {kind: BucketHistogram(ERROR_BOUNDS_S) for kind in ("load", "infer")}
        """Seconds by which actions took less time than predicted."""
        self.under_s = {kind: BucketHistogram(ERROR_BOUNDS_S) for kind in ("load", "infer")}
        """Seconds by which actions took more time than predicted."""

    def on_replica_death(self, reason: str, _text: str = "") -> None:
        """Record the unexpected exit of a replica."""
        self.replica_deaths[reason] = self.replica_deaths.get(reason, 0) + 1

    def record_action(
        self, kind: str, outcome: str, expected_s: float, took_s: float | None
    ) -> None:
        """Record the end of an action; its durations count only if it succeeded."""
        by_outcome = self.actions.setdefault(kind, {})
        by_outcome[outcome] = by_outcome.get(outcome, 0) + 1
        if took_s is None or outcome != "ok":
            return
        if kind == "load":
            self.load_s.observe(took_s)
        if took_s > expected_s:
            self.under_s[kind].observe(took_s - expected_s)
        else:
            self.over_s[kind].observe(expected_s - took_s)
