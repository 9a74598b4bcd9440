"""Estimates of batch duration by size: the 90th percentile of the last measurements.

With the maximum, as in Clockwork (OSDI'20, section 5.1), one hiccup would decide ten estimates.
Other sizes are interpolated, or extrapolated from the two largest.

A size that looks too slow is not run, so its estimate would never be corrected. If the estimate
exceeds what neighbouring sizes predict, the size is tried again after a while; if it is still as
slow, its estimate is trusted for twice as long. Pure.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

WINDOW = 10
_RANK = 1
"""Rank of the 90th percentile of ten measurements, counted from the largest."""
_MIN_MEASUREMENTS = 3
"""Number of measurements below which the longest one is the estimate."""
SEEDS_LAST = 100
"""Number of batches after which warm-up times are dropped."""
DOUBTED_AFTER = 20
DOUBTED_AFTER_S = 0.25
"""Seconds of batches after which a slow-looking size is dropped; doubled if it was really slow."""
_MAX_DOUBLED = 3
"""Maximum number of doublings; the resulting 2 s outlast a disturbance."""
_OUT_OF_LINE = 1.2
"""Ratio of estimate to prediction up to which a difference counts as noise."""
_TRIED = 2.0
_LOOK_EVERY = 8


class _Size:
    __slots__ = ("doubled", "doubted_s", "next", "ran", "seen", "when")

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.when: list[tuple[int, float]] = []
        self.next = 0
        self.ran = 0, 0.0
        self.doubted_s = 0.0
        """Estimate from before the size was dropped; 0 once it is tried again."""
        self.doubled = 0

    def forget(self) -> None:
        self.seen.clear()
        self.when.clear()
        self.next = 0

    def last_beyond(self, min_s: float) -> tuple[int, float]:
        """Return when the last batch longer than `min_s` ran, as (batches, seconds) so far."""
        return max(
            when for took_s, when in zip(self.seen, self.when, strict=True) if took_s > min_s
        )

    @property
    def estimate_s(self) -> float:
        ranked = sorted(self.seen)
        return ranked[-1 - _RANK] if len(ranked) >= _MIN_MEASUREMENTS else ranked[-1]


class BatchTimeEstimator:
    """Batch durations of one model on one kind of worker."""

    def __init__(self) -> None:
        self._seen: dict[int, _Size] = {}
        self._sizes: list[int] = []
        self._measured: dict[int, float] = {}
        self._estimates: dict[int, float] = {}
        self._seeds: set[int] = set()
        self._seeds_last = SEEDS_LAST
        self._batches = 0
        self._spent_s = 0.0
        self._look = _LOOK_EVERY

    def seed(self, batch_s: Mapping[int, float]) -> None:
        """Set warm-up durations for sizes without measurements; keep each size's shortest one."""
        if not self._seeds:
            self._seeds_last = SEEDS_LAST
        for size, took_s in batch_s.items():
            if size in self._seeds:
                self._measured[size] = min(took_s, self._measured[size])
            elif size not in self._seen:
                self._seeds.add(size)
                self._measured[size] = took_s
                bisect.insort(self._sizes, size)
        self._estimates.clear()

    def observe(self, size: int, took_s: float) -> None:
        """Record the seconds that a batch took in its worker."""
        known = self._seen.get(size)
        if known is None:
            self._seen[size] = known = _Size()
        if not known.seen:
            self._measured_first(size, known, took_s)
        elif (
            self._batches - known.when[known.next][0] >= DOUBTED_AFTER
            and (most_s := _OUT_OF_LINE * took_s) < self._measured[size]
            and self._is_old(known, known.last_beyond(most_s))
        ):
            known.forget()
        self._batches += 1
        self._spent_s += took_s
        known.ran = self._batches, self._spent_s
        if self._seeds:
            self._seeds_last -= 1
            if not self._seeds_last:
                self._forget_seeds()
        if len(known.seen) < WINDOW:
            known.seen.append(took_s)
            known.when.append(known.ran)
        else:
            known.seen[known.next] = took_s
            known.when[known.next] = known.ran
            known.next = (known.next + 1) % WINDOW
        worth_s = known.estimate_s
        if worth_s != self._measured.get(size):
            self._measured[size] = worth_s
            self._estimates.clear()
        if self._batches >= self._look:
            self._look = self._batches + _LOOK_EVERY
            self._doubt()

    def estimate_s(self, size: int) -> float:
        """Return the expected duration in seconds, or 0 if nothing was measured."""
        known = self._estimates.get(size)
        if known is None:
            known = self._estimates[size] = _interpolate(self._sizes, self._measured, size)
        return known

    @property
    def max_measured(self) -> int:
        """Largest measured size, or 0."""
        return self._sizes[-1] if self._sizes else 0

    def largest(self, within_s: float, most: int) -> int:
        """Return the largest size, up to `most`, expected to run within `within_s`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.estimate_s(middle) <= within_s:
                low = middle
            else:
                high = middle - 1
        return low

    def estimates_s(self) -> dict[int, float]:
        """Return the estimate for each measured size."""
        return {size: self._measured[size] for size in self._sizes}

    def _measured_first(self, size: int, known: _Size, took_s: float) -> None:
        if known.doubted_s:
            is_longer = took_s * _OUT_OF_LINE >= known.doubted_s
            known.doubled = min(_MAX_DOUBLED, known.doubled + 1) if is_longer else 0
            known.doubted_s = 0.0
        if size in self._seeds:
            self._seeds.remove(size)
        else:
            bisect.insort(self._sizes, size)

    def _is_old(self, known: _Size, when: tuple[int, float]) -> bool:
        batch, spent_s = when
        return (
            self._batches - batch >= DOUBTED_AFTER
            and self._spent_s - spent_s >= DOUBTED_AFTER_S * 2.0**known.doubled
        )

    def _doubt(self) -> None:
        """Drop old sizes whose estimates exceed what their neighbours predict."""
        fresh, old = list[int](), list[int]()
        latest, latest_s = 0, math.inf  # the larger size that ran last
        for size in reversed(self._sizes):
            if size in self._seeds:
                continue
            known, worth_s = self._seen[size], self._measured[size]
            batch, _ = known.ran
            is_contradicted = batch < latest and worth_s > _OUT_OF_LINE * latest_s
            if self._is_old(known, known.ran) or (is_contradicted and not known.doubled):
                old.append(size)
                continue
            fresh.append(size)
            if batch > latest:
                latest, latest_s = batch, worth_s
        fresh.reverse()
        for size in old:
            known, worth_s = self._seen[size], self._measured[size]
            if worth_s <= _OUT_OF_LINE * _interpolate(fresh, self._measured, size):
                continue
            known.doubted_s = worth_s
            known.forget()
            self._sizes.remove(size)
            del self._measured[size]
            self._estimates.clear()

    def _forget_seeds(self) -> None:
        for size in self._seeds:
            self._sizes.remove(size)
            del self._measured[size]
        self._seeds.clear()
        self._estimates.clear()


def _interpolate(sizes: Sequence[int], measured: Mapping[int, float], size: int) -> float:
    if not sizes:
        return 0.0
    above = bisect.bisect_left(sizes, size)
    if above < len(sizes) and sizes[above] == size:
        return measured[size]
    if above == 0:
        return measured[sizes[0]]
    if above == len(sizes):
        if len(sizes) == 1:  # the slope is unknown
            return measured[sizes[0]] * max(1.0, size / (_TRIED * sizes[0]))
        above -= 1
    left, right = sizes[above - 1], sizes[above]
    left_s, right_s = measured[left], measured[right]
    slope = max(0.0, (right_s - left_s) / (right - left))
    return max(left_s if size > left else 0.0, right_s + slope * (size - right))
