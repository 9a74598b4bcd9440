"""Durations of a model's actions on one kind of worker: the longest recent one plus a margin.

As in Clockwork (OSDI'20, section 5.1), whose 99th percentile of the last 10 measurements is their
maximum. Unknown sizes are interpolated. A measurement sums a batch's stages (docs/decisions/0016).
Pure; times are in seconds.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WINDOW = 10


class SlidingMaximum:
    """Sliding maximum of one action's durations."""

    __slots__ = ("_duration_margin", "_seed_s", "_seen", "estimate_s")

    def __init__(self, seed_s: float, duration_margin: float) -> None:
        """Start from a measurement or profile, with a margin of the share `duration_margin`."""
        self._duration_margin = 1.0 + duration_margin
        self._seed_s = seed_s
        self._seen: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self.estimate_s = seed_s * self._duration_margin

    def observe(self, took_s: float) -> None:
        """Add a measurement; the first replaces the seed."""
        self._seen.append(took_s)
        self.estimate_s = max(self._seen) * self._duration_margin

    def drop_longest(self) -> bool:
        """Drop the longest measurement; return whether the estimate fell."""
        before_s = self.estimate_s
        if self._seen:
            self._seen.remove(max(self._seen))
        doubted_s = max(self._seen, default=self._seed_s) * self._duration_margin
        self.estimate_s = min(before_s, doubted_s)
        return self.estimate_s < before_s


class BatchSplits(NamedTuple):
    """Fastest split of each number of items into batches."""

    sizes: tuple[int, ...]
    """Useful batch sizes, ascending, from 1."""
    estimate_s: tuple[float, ...]
    """Their seconds."""
    quickest_s: tuple[float, ...]
    """Of n items in the best batches, from n = 0."""


_NO_SPLITS = BatchSplits((), (), (0.0,))


class Durations:
    """Batch durations of one model by size.

    Attributes:
        sizes: ascending from 1, without those that a split into smaller batches beats.
        worth_s: their seconds.
        item_s: seconds per item in the largest batch.
    """

    __slots__ = (
        "_alike",
        "_batch_s",
        "_duration_margin",
        "_seeds_s",
        "_ways",
        "_windows",
        "estimate_s",
        "item_s",
        "sizes",
    )

    def __init__(
        self, batch_s: Mapping[int, float], *, most: int, duration_margin: float, pads: bool = False
    ) -> None:
        """Start from a profile.

        Args:
            batch_s: items -> seconds, not empty.
            most: largest batch.
            duration_margin: margin as a share.
            pads: whether other sizes take as long as the next larger one.
        """
        told = tuple(sorted(batch_s.items()))
        self._duration_margin = duration_margin
        self._alike, self._seeds_s = _expand_profile(told, min(most, told[-1][0]), pads)
        self._batch_s = [seed_s * (1.0 + duration_margin) for seed_s in self._seeds_s]
        self._windows: dict[int, SlidingMaximum] = {}
        self._take(_first_splits(tuple(self._batch_s)))

    def observe(self, count: int, took_s: float) -> None:
        """Record a batch; sizes beyond the largest are ignored."""
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
        """Drop the longest measurements; return whether any estimate fell."""
        lower = [first for first, window in self._windows.items() if window.drop_longest()]
        if lower:
            self._update_sizes(lower)
        return bool(lower)

    def _update_sizes(self, windows: Sequence[int]) -> None:
        for first in windows:
            alike = self._alike[first - 1]
            self._batch_s[first - 1 : alike.stop - 1] = [self._windows[first].estimate_s] * len(
                alike
            )
        self._take(_splits(self._batch_s, self._ways, min(windows)))

    def _take(self, ways: BatchSplits) -> None:
        self._ways = ways
        self.sizes, self.estimate_s, _ = ways
        self.item_s = self.estimate_s[-1] / self.sizes[-1]

    def quickest_s(self, count: int) -> float:
        """Return the seconds of `count` items in the best batches."""
        quickest_s = self._ways.quickest_s
        whole, rest = divmod(count, len(quickest_s) - 1)
        return whole * quickest_s[-1] + quickest_s[rest]


@functools.lru_cache(maxsize=256)
def _expand_profile(
    told: tuple[tuple[int, float], ...], most: int, pads: bool
) -> tuple[tuple[range, ...], tuple[float, ...]]:
    """Return, by size less one, the sizes that take as long, and the seconds."""
    counts = range(1, most + 1)
    if pads:
        sizes = [0, *(size for size, _ in told)]
        alike = [range(low + 1, min(high, most) + 1) for low, high in itertools.pairwise(sizes)]
        of_count = tuple(one for one in alike for _ in one)
        batch_s = dict(told)
        return of_count, tuple(
            next(batch_s[size] for size in batch_s if size >= one) for one in counts
        )
    return tuple(range(one, one + 1) for one in counts), tuple(
        _between(told, one) for one in counts
    )


def _splits(batch_s: Sequence[float], known: BatchSplits, first: int) -> BatchSplits:
    """Return the best splits, reusing `known` below size `first`."""
    place = bisect.bisect_left(known.sizes, first)
    sizes, worth_s = list(known.sizes[:place]), list(known.estimate_s[:place])
    quickest_s = list(known.quickest_s[:first])
    for count in range(first, len(batch_s) + 1):
        alone_s = batch_s[count - 1]
        half = count // 2  # splits are symmetric
        split_s = min(
            map(operator.add, quickest_s[1 : half + 1], quickest_s[count - 1 : half - 1 : -1]),
            default=math.inf,
        )
        if alone_s <= split_s:
            sizes.append(count)
            worth_s.append(alone_s)
        quickest_s.append(max(quickest_s[-1], min(alone_s, split_s)))
    return BatchSplits(tuple(sizes), tuple(worth_s), tuple(quickest_s))


@functools.lru_cache(maxsize=256)
def _first_splits(batch_s: tuple[float, ...]) -> BatchSplits:
    return _splits(batch_s, _NO_SPLITS, 1)


def _between(told: Sequence[tuple[int, float]], size: int) -> float:
    place = bisect.bisect_left(told, (size,))
    if place < len(told) and told[place][0] == size:
        return told[place][1]
    if not place:
        return told[0][1]
    below, below_s = told[place - 1]
    if place == len(told):
        return below_s * size / below
    above, above_s = told[place]
    return below_s + (size - below) / (above - below) * (above_s - below_s)
