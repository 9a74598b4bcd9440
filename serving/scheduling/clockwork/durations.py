"""Durations of a model's actions on one kind of worker: the longest recent one plus a margin.

This follows Clockwork (OSDI'20, section 5.1), whose 99th percentile of the last 10 measurements is
their maximum. Unmeasured sizes are interpolated. A measurement is the sum of a batch's stages
(docs/decisions/0016).
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

WINDOW = 10


class SlidingMaximum:
    """Sliding maximum of an action's durations."""

    __slots__ = ("_duration_margin", "_seed_s", "_seen", "estimate_s")

    def __init__(self, seed_s: float, duration_margin: float) -> None:
        self._duration_margin = 1.0 + duration_margin
        self._seed_s = seed_s
        self._seen: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self.estimate_s = seed_s * self._duration_margin

    def observe(self, took_s: float) -> None:
        """Add a measurement; the first one replaces the seed."""
        self._seen.append(took_s)
        self.estimate_s = max(self._seen) * self._duration_margin

    def drop_longest(self) -> bool:
        """Drop the longest measurement; return whether this lowers the estimate."""
        before_s = self.estimate_s
        if self._seen:
            self._seen.remove(max(self._seen))
        doubted_s = max(self._seen, default=self._seed_s) * self._duration_margin
        self.estimate_s = min(before_s, doubted_s)
        return self.estimate_s < before_s


class Durations:
    """Batch durations of one model by size.

    Attributes:
        sizes: batch sizes from 1 up, without those that are faster when split.
        estimate_s: seconds that a batch of each size takes.
        item_s: seconds per item in the largest batch.
    """

    def __init__(
        self, batch_s: Mapping[int, float], *, most: int, duration_margin: float, pads: bool = False
    ) -> None:
        """Start from a profile.

        Args:
            batch_s: batch size -> seconds; not empty.
            most: maximum batch size.
            duration_margin: margin as a share of the duration.
            pads: whether a size not in `batch_s` takes as long as the next larger one.
        """
        self._duration_margin = duration_margin
        self._alike, self._seeds_s = _expand_profile(batch_s, most, pads)
        self._batch_s = [seed_s * (1.0 + duration_margin) for seed_s in self._seeds_s]
        self._windows: dict[int, SlidingMaximum] = {}
        sizes, estimate_s, quickest_s = _first_splits(tuple(self._batch_s))
        self.sizes = list(sizes)
        self.estimate_s = list(estimate_s)
        self._quickest_s = list(quickest_s)
        self.item_s = self.estimate_s[-1] / self.sizes[-1]

    def observe(self, count: int, took_s: float) -> None:
        """Record a batch; ignore sizes above the largest one."""
        if not 0 < count <= len(self._alike):
            return
        first = self._alike[count - 1].start
        window = self._windows.get(first)
        if window is None:
            window = self._windows[first] = SlidingMaximum(
                self._seeds_s[first - 1], self._duration_margin
            )
        window.observe(took_s)
        if window.estimate_s != self._batch_s[first - 1]:
            self._update_sizes([first])

    def drop_longest(self) -> bool:
        """Drop the longest measurements; return whether this lowers any estimate."""
        lower = [first for first, window in self._windows.items() if window.drop_longest()]
        if lower:
            self._update_sizes(lower)
        return bool(lower)

    def _update_sizes(self, windows: Sequence[int]) -> None:
        for first in windows:
            alike, took_s = self._alike[first - 1], self._windows[first].estimate_s
            self._batch_s[first - 1 : alike.stop - 1] = [took_s] * len(alike)
        self._split(min(windows))

    def _split(self, first: int) -> None:
        place, quickest_s = bisect.bisect_left(self.sizes, first), self._quickest_s
        del self.sizes[place:], self.estimate_s[place:], quickest_s[first:]
        _add_splits(self._batch_s, self.sizes, self.estimate_s, quickest_s)
        self.item_s = self.estimate_s[-1] / self.sizes[-1]

    def quickest_s(self, count: int) -> float:
        """Return the seconds that `count` items take when best split into batches."""
        quickest_s = self._quickest_s
        whole, rest = divmod(count, len(quickest_s) - 1)
        return whole * quickest_s[-1] + quickest_s[rest]


@functools.lru_cache(maxsize=256)
def _first_splits(
    batch_s: tuple[float, ...],
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    sizes: list[int] = []
    estimate_s: list[float] = []
    quickest_s = [0.0]
    _add_splits(batch_s, sizes, estimate_s, quickest_s)
    return tuple(sizes), tuple(estimate_s), tuple(quickest_s)


def _add_splits(
    batch_s: Sequence[float], sizes: list[int], estimate_s: list[float], quickest_s: list[float]
) -> None:
    """Add the best splits for sizes not in `quickest_s`; quadratic in the largest size."""
    for count in range(len(quickest_s), len(batch_s) + 1):
        alone_s = batch_s[count - 1]
        half = count // 2  # splits are symmetric
        split_s = min(
            map(operator.add, quickest_s[1 : half + 1], quickest_s[count - 1 : half - 1 : -1]),
            default=math.inf,
        )
        if alone_s <= split_s:
            sizes.append(count)
            estimate_s.append(alone_s)
        quickest_s.append(max(quickest_s[-1], min(alone_s, split_s)))


def _expand_profile(
    batch_s: Mapping[int, float], most: int, pads: bool
) -> tuple[list[range], list[float]]:
    """Return by size (index size - 1) the sizes that take equally long, and their seconds."""
    told = sorted(batch_s)
    most = min(most, told[-1])
    if not pads:
        counts = range(1, most + 1)
        seconds = np.interp(counts, told, [batch_s[size] for size in told])
        return [range(one, one + 1) for one in counts], seconds.tolist()
    alike: list[range] = []
    seconds_s: list[float] = []
    for low, high in itertools.pairwise([0, *told]):
        same = range(low + 1, min(high, most) + 1)
        alike += [same] * len(same)
        seconds_s += [batch_s[high]] * len(same)
    return alike, seconds_s
