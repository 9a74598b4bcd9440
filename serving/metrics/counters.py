"""Plain counters and histograms for the request path, without a label look-up or a lock per request.

They are written by the event loop's thread alone and read by `serving.metrics.exposition` when
somebody asks.
"""

from __future__ import annotations

import numpy as np

LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds in seconds: fine where small models answer, coarse where only the order of magnitude matters."""

ERROR_BOUNDS_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 1.0)
"""Upper bounds in seconds of what a prediction was off: Clockwork's are off by a part of a millisecond."""

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds in items."""


_UNCOUNTED = 1024
"""Observations that are kept as they are: to count as many at once costs a tenth of counting each."""


class Histogram:
    """Counts by upper bound, with the sum."""

    __slots__ = ("_counts", "_uncounted", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)
        self._uncounted: list[float] = []

    @property
    def counts(self) -> list[int]:
        """Observations at most each bound and above the one before; the last: above all."""
        if self._uncounted:
            self._count()
        return self._counts

    def observe(self, value: float) -> None:
        """Count one value."""
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
        """Prometheus buckets: (upper bound, observations at most that)."""
        total = 0
        buckets = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
        return buckets


class Counters:
    """Everything that the request path counts."""

    def __init__(self) -> None:
        self.responses: dict[int, int] = {}
        """Inference responses by HTTP status; 499: the client went away."""
        self.latency_s = Histogram(LATENCY_BOUNDS_S)
        self.batch_items = Histogram(tuple(float(bound) for bound in BATCH_BOUNDS))
        self.exec_s = Histogram(LATENCY_BOUNDS_S)
        self.late = 0
        """Predictions that left after their request's deadline."""
        self.replica_deaths: dict[str, int] = {}
        """Replica ends that nobody asked for, by reason."""

    def done(self, status: int, seconds: float) -> None:
        """One inference was answered."""
        self.responses[status] = self.responses.get(status, 0) + 1
        self.latency_s.observe(seconds)

    def died(self, reason: str, _text: str = "") -> None:
        """One replica ended unasked."""
        self.replica_deaths[reason] = self.replica_deaths.get(reason, 0) + 1


class PoolCounters:
    """What is counted about replicas that models share."""

    def __init__(self) -> None:
        self.replica_deaths: dict[str, int] = {}
        """Replica ends that nobody asked for, by reason."""
        self.actions: dict[str, dict[str, int]] = {}
        """By what they did (`load`, `infer`, `unload`), then by how they ended."""
        self.load_s = Histogram(LATENCY_BOUNDS_S)
        self.over_s = {kind: Histogram(ERROR_BOUNDS_S) for kind in ("load", "infer")}
        """Seconds by which actions took less than was predicted."""
        self.under_s = {kind: Histogram(ERROR_BOUNDS_S) for kind in ("load", "infer")}
        """Seconds by which they took more."""

    def died(self, reason: str, _text: str = "") -> None:
        """One replica ended unasked."""
        self.replica_deaths[reason] = self.replica_deaths.get(reason, 0) + 1

    def ended(self, kind: str, outcome: str, expected_s: float, took_s: float | None) -> None:
        """One action ended; what has failed tells nothing about predictions."""
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
