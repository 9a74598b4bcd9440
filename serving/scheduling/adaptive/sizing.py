"""Batching policies, which set a batch's size and how long it waits to fill.

    fixed     `max_size` and `timeout_us`
    aimd      one item more after each full batch in time, a tenth less after a late batch
    quantile  the largest size whose 99th percentile, by regression on size, is in time
    delayed   `max_size`, waiting only if more requests are expected within `timeout_us`

Source: Clipper (NSDI'17), sections 4.3.1 and 4.3.2. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

import numpy as np
from numpy.typing import NDArray

from serving.settings.scheduling import BatchingSettings

BATCHES_PER_REQUEST = 3
"""Number of batches that a request waits for: one running, one buffered, and its own."""
BACK_OFF = 0.9
QUANTILE = 0.99
_RETAINED_PER_SIZE = 8
_RETAINED_SIZES = 24
_FORGOTTEN_AFTER = 4096
_PATIENCE = 16
"""Number of consecutive timely full batches after which times of larger sizes are dropped."""
_MAX_PATIENCE = 128
_FRESH = 32
_OUT_OF_LINE = 1.3
_SEVERAL = 2
"""Number of a size's outliers at which they are dropped."""
_REFIT_EVERY = 16
_MIN_BATCHES = 8
_GROWTH = 1.5
"""Multiple of the largest measured batch size up to which the regression is trusted."""
_STEPS = 60
_RATE_WEIGHT = 0.1


class FixedSizing:
    """The size and timeout from the settings; base of the other policies."""

    watches_arrivals = False

    def __init__(self, settings: BatchingSettings) -> None:
        self.size = settings.max_size
        """Maximum number of items in the next batch."""
        self._wait_s = settings.timeout_us * 1e-6

    def wait_s(self, _waiting: int) -> float:
        """Return how long the oldest item may wait if this many items are queued."""
        return self._wait_s

    def record_arrival(self, _now_s: float) -> None:
        """Record a request's arrival; called only if `watches_arrivals`."""

    def ran(self, _items: int, _took_s: float, _filled: int) -> None:
        """Record the duration of a batch that could have held `filled` items."""


class Aimd(FixedSizing):
    """Additive increase, multiplicative decrease."""

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._most = settings.max_size
        self._budget_s = budget_s(settings)
        self._exact = 1.0
        self.size = 1

    def ran(self, _items: int, took_s: float, filled: int) -> None:
        """Grow the size after a full batch in time, or shrink it after a late one."""
        if took_s > self._budget_s:
            self._exact = max(1.0, self._exact * BACK_OFF)
        elif filled >= self.size:
            self._exact = min(float(self._most), self._exact + 1.0)
        self.size = int(self._exact)


class Quantile(FixedSizing):
    """Quantile regression of batch latency on batch size, ignoring outliers left by stalls."""

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._most = settings.max_size
        self._budget_s = budget_s(settings)
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._batches = 0
        self._next_fit = _MIN_BATCHES
        self._in_time = 0
        self._largest = 0
        self._max_gap_s = 0.0
        self._patience = _PATIENCE
        self._next_patience = _PATIENCE
        self._late = 0
        self._filled = 1
        self.size = 1

    def ran(self, items: int, took_s: float, filled: int) -> None:
        """Record a batch; refit the size periodically or after an unexpected duration."""
        self._batches += 1
        is_full = filled >= self.size
        if is_full:
            self._filled = self.size
        is_late = is_full and took_s > self._budget_s
        is_new = items not in self._seen
        if is_new:
            self._seen[items] = deque(maxlen=_RETAINED_PER_SIZE)
        self._seen[items].append((self._batches, took_s))
        is_trial = is_full and self._count(items, took_s)
        is_urgent = is_trial or (is_late and self.size > 1) or (is_full and is_new)
        if self._batches >= self._next_fit or (is_urgent and self._batches >= _MIN_BATCHES):
            self._next_fit = self._batches + _REFIT_EVERY
            self._forget()
            self._forget_out_of_line()
            self.size = self._fit_size()

    def _count(self, items: int, took_s: float) -> bool:
        if took_s > self._budget_s:
            if not self._late:
                is_soon = self._in_time < self._patience
                self._next_patience = 2 * self._patience if is_soon else _PATIENCE
            self._late += 1
            self._patience = min(self._next_patience, _MAX_PATIENCE * self._late)
            self._begin_run()
            return False
        self._in_time += 1
        self._largest = max(self._largest, items)
        self._max_gap_s = max(self._max_gap_s, took_s)
        if self._in_time < self._patience or self.size >= self._most:
            return False
        is_changed = self._forget_contradictions()
        if is_changed:
            self._late = 0
        self._begin_run()
        return is_changed

    def _begin_run(self) -> None:
        self._in_time = self._largest = 0
        self._max_gap_s = 0.0

    def _forget_contradictions(self) -> bool:
        """Drop times that timely full batches contradict; return whether any were dropped."""
        kept = {
            size: deque((one for one in seen if one[1] <= self._max_gap_s), _RETAINED_PER_SIZE)
            for size, seen in self._seen.items()
            if size <= self._largest
        }
        is_changed = sum(map(len, kept.values())) < sum(map(len, self._seen.values()))
        self._seen = {size: seen for size, seen in kept.items() if seen}
        return is_changed

    def _forget(self) -> None:
        """Drop sizes unused for long and, beyond a limit, the least recently used."""
        recent = sorted(self._seen, key=lambda size: -self._seen[size][-1][0])[:_RETAINED_SIZES]
        oldest = self._batches - _FORGOTTEN_AFTER
        self._seen = {size: self._seen[size] for size in recent if self._seen[size][-1][0] > oldest}

    def _forget_out_of_line(self) -> None:
        oldest = self._batches - _FRESH
        fresh = [
            (size, took_s)
            for size, seen in self._seen.items()
            for number, took_s in seen
            if number > oldest
        ]
        if len({size for size, _ in fresh}) < 2:
            return
        slope_s, base_s = statistics.linear_regression(*zip(*fresh, strict=True))
        if base_s < 0.0 or slope_s <= 0.0:
            return
        most = _OUT_OF_LINE * max(took_s / (base_s + slope_s * size) for size, took_s in fresh)
        for size, seen in list(self._seen.items()):
            most_s = most * (base_s + slope_s * size)
            kept = [one for one in seen if one[0] > oldest or one[1] <= most_s]
            if len(seen) - len(kept) >= _SEVERAL:
                self._seen[size] = deque(kept, _RETAINED_PER_SIZE)
        self._seen = {size: seen for size, seen in self._seen.items() if seen}

    def _fit_size(self) -> int:
        pairs = [(size, took_s) for size, seen in self._seen.items() for _, took_s in seen]
        sizes, seconds = (np.array(column, float) for column in zip(*pairs, strict=True))
        largest = float(sizes.max())
        limit = min(self._most, math.ceil(max(largest, self._filled) * _GROWTH))
        base_s, slope_s = quantile_line(sizes, seconds, QUANTILE)
        if slope_s <= 0.0:  # one size, or only noise: shrink in proportion, grow by a step
            largest_s = float(seconds[sizes == largest].max())
            base_s, slope_s = 0.0, largest_s / largest
            if largest_s <= self._budget_s:
                return limit
        if base_s + slope_s * limit <= self._budget_s:
            return limit
        return max(1, min(limit, int((self._budget_s - base_s) / slope_s)))


class Delayed(FixedSizing):
    """Full batches, for which a request waits only if more are expected in time."""

    watches_arrivals = True

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._max_gap_s = self._wait_s
        self._gap_s = math.inf
        self._last_s: float | None = None

    def record_arrival(self, now_s: float) -> None:
        """Update the mean gap between arrivals."""
        if self._last_s is not None:
            gap_s = now_s - self._last_s
            if gap_s > self._max_gap_s or self._gap_s == math.inf:
                self._gap_s = gap_s
            else:
                self._gap_s += _RATE_WEIGHT * (gap_s - self._gap_s)
        self._last_s = now_s

    def wait_s(self, waiting: int) -> float:
        """Return the expected time to fill the batch, or 0 if no request is expected soon."""
        if self._gap_s > self._max_gap_s:
            return 0.0
        return min(self._max_gap_s, self._gap_s * max(0, self.size - waiting) + self._gap_s)


POLICIES = {"fixed": FixedSizing, "aimd": Aimd, "quantile": Quantile, "delayed": Delayed}
"""`batching.policy` -> class of the policy."""


def budget_s(settings: BatchingSettings) -> float:
    """Return the time that one batch may take."""
    return settings.slo_ms * 1e-3 / BATCHES_PER_REQUEST


def quantile_line(
    sizes: NDArray[np.float64], seconds: NDArray[np.float64], quantile: float
) -> tuple[float, float]:
    """Return the base and the slope of a linear quantile regression.

    The regression (Koenker and Bassett 1978, Econometrica 46:33) is solved by iteratively
    reweighted least squares: a residual r has pinball loss r^2 with weight (tau or 1 - tau) / |r|.

    Args:
        sizes: (n,) numbers of items.
        seconds: (n,) durations.
        quantile: from 0 to 1.

    Returns:
        Seconds and seconds per item; the slope is 0 if all sizes are the same.
    """
    weights = np.ones_like(seconds)
    least = 1e-6 * max(float(seconds.max()), 1e-9)
    base = slope = 0.0
    for _ in range(_STEPS):
        total = weights.sum()
        mean_size, mean_s = weights @ sizes / total, weights @ seconds / total
        apart = sizes - mean_size
        spread = weights @ (apart * apart)
        slope = float(weights @ (apart * (seconds - mean_s)) / spread) if spread > 0.0 else 0.0
        base = float(mean_s - slope * mean_size)
        rest = seconds - base - slope * sizes
        weights = np.where(rest >= 0.0, quantile, 1.0 - quantile) / np.maximum(np.abs(rest), least)
    return base, slope
