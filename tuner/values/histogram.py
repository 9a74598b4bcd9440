"""Latency histogram with 1 % buckets, for pooling several evaluations.

A pooled p99 is a quantile of all requests, whereas a mean of p99s is too low if evaluations differ.
Quantiles are accurate to within half a per cent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

WIDTH = 1.01
"""Ratio of a bucket's ends: bucket i holds latencies from WIDTH^i up to WIDTH^(i+1) ms."""
_LOG_WIDTH = math.log(WIDTH)
MIN_MS = 1e-6
"""Clock resolution; shorter latencies are counted as this."""


@dataclasses.dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Counts in consecutive buckets, starting with bucket number `first`."""

    first: int
    counts: tuple[int, ...]

    @classmethod
    def of(cls, took_ms: NDArray[np.float64]) -> Self:
        """Return the histogram of latencies (n,), where n is at least 1."""
        buckets = np.floor(np.log(np.maximum(took_ms, MIN_MS)) / _LOG_WIDTH).astype(np.int64)
        first = int(buckets.min())
        return cls(first, tuple(np.bincount(buckets - first).tolist()))

    @classmethod
    def merge(cls, histograms: Iterable[LatencyHistogram]) -> Self:
        """Merge one or more histograms."""
        every = list(histograms)
        first = min(one.first for one in every)
        counts = np.zeros(max(one.first + len(one.counts) for one in every) - first, dtype=np.int64)
        for one in every:
            counts[one.first - first : one.first - first + len(one.counts)] += one.counts
        return cls(first, tuple(counts.tolist()))

    def __len__(self) -> int:
        return sum(self.counts)

    def scale(self, factor: float) -> LatencyHistogram:
        """Return the histogram with all latencies multiplied by `factor`, rounded to a bucket."""
        return LatencyHistogram(self.first + round(math.log(factor) / _LOG_WIDTH), self.counts)

    def quantile_ms(self, share: float) -> float:
        """Return the nearest-rank quantile, interpolated within its bucket."""
        return self.at_rank_ms(max(1, math.ceil(share * len(self) - 1e-9)))

    def at_rank_ms(self, rank: int) -> float:
        """Return the latency at a rank; rank 1 is the shortest."""
        upto = np.cumsum(self.counts)
        place = int(np.searchsorted(upto, rank))
        inside = (rank - (int(upto[place]) - self.counts[place]) - 0.5) / self.counts[place]
        return float(math.exp(_LOG_WIDTH * (self.first + place + inside)))

    def share_within(self, took_ms: float) -> float:
        """Return the share of latencies up to `took_ms`, interpolated within its bucket."""
        place = math.log(max(took_ms, MIN_MS)) / _LOG_WIDTH - self.first
        whole = min(max(0, math.floor(place)), len(self.counts))
        inside = self.counts[whole] * (place - whole) if 0 <= place < len(self.counts) else 0.0
        return (sum(self.counts[:whole]) + inside) / len(self)

    def text(self) -> tuple[str, str]:
        """Return the first bucket and the counts as text, to save them."""
        return str(self.first), " ".join(map(str, self.counts))

    @classmethod
    def parse(cls, first: str, counts: str) -> Self:
        """Return the histogram that `text` described, or raise ValueError."""
        found = tuple(int(part) for part in counts.split())
        if not found or min(found) < 0 or not sum(found):
            raise ValueError(f"{counts[:40]!r} are no counts")
        return cls(int(first), found)
