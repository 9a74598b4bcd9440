"""How long batches of a size take: measured, remembered briefly, and told for any size.

In: sizes and seconds of batches that ran. Out: an estimate that most batches of a size keep. Each
size remembers its last measurements and is worth their 90th percentile; a size that was not measured
lies on the line between its measured neighbours, beyond the largest on the line through the two
largest. Clockwork's predictor (OSDI'20, section 5.1: the last 10 measurements per model and batch
size) takes their 99th percentile, in effect the maximum; on shared cores one hiccup would then rule
the next ten decisions.

What a warm-up has measured stands in for a size until the first batch of it has run.

Pure; times are in seconds.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

WINDOW = 10
"""Measurements kept per size, as in Clockwork."""
_RANK = 1
"""Of the sorted measurements of a full window, from the largest: the 90th percentile of ten."""


SEEDS_LAST = 100
"""Batches after which no seed is believed any more: a size that one made look too slow would never be tried."""


class Profile:
    """Execution times of one model on one kind of worker."""

    __slots__ = ("_estimates", "_measured", "_next", "_seeds", "_seeds_last", "_seen", "_sizes")

    def __init__(self) -> None:
        self._seen: dict[int, list[float]] = {}
        self._next: dict[int, int] = {}
        self._sizes: list[int] = []
        self._measured: dict[int, float] = {}
        """What each size that was measured is worth."""
        self._estimates: dict[int, float] = {}
        """What was told since one of them changed."""
        self._seeds: set[int] = set()
        """Sizes of which only a warm-up tells anything."""
        self._seeds_last = SEEDS_LAST
        """Batches until they are forgotten."""

    def seed(self, batch_s: Mapping[int, float]) -> None:
        """Batches of these sizes took so long in a warm-up on real inputs.

        A size that was measured is known better. Of several seeds the shortest counts: replicas that
        warm up together slow one another down, and one that is too long refuses what could be answered.
        """
        if not self._seeds:
            self._seeds_last = SEEDS_LAST
        for size, took_s in batch_s.items():
            if size in self._seeds:
                self._measured[size] = min(took_s, self._measured[size])
            elif size not in self._measured:
                self._seeds.add(size)
                self._measured[size] = took_s
                bisect.insort(self._sizes, size)
        self._estimates.clear()

    def observe(self, size: int, took_s: float) -> None:
        """A batch of `size` items took so long in its worker."""
        seen = self._seen.get(size)
        if seen is None:
            self._seen[size] = seen = []
            self._next[size] = 0
            if size in self._seeds:
                self._seeds.remove(size)
            else:
                bisect.insort(self._sizes, size)
        if self._seeds:
            self._seeds_last -= 1
            if not self._seeds_last:
                self._forget_seeds()
        if len(seen) < WINDOW:
            seen.append(took_s)
        else:
            place = self._next[size]
            seen[place] = took_s
            self._next[size] = (place + 1) % WINDOW
        ranked = sorted(seen)
        worth_s = ranked[-1 - _RANK] if len(ranked) == WINDOW else ranked[-1]
        if worth_s != self._measured.get(size):
            self._measured[size] = worth_s
            self._estimates.clear()

    def estimate_s(self, size: int) -> float:
        """Seconds that a batch of `size` items is expected to take at most; 0 while nothing was seen."""
        known = self._estimates.get(size)
        if known is None:
            known = self._estimates[size] = self._worked_out(size)
        return known

    def covers(self, size: int) -> bool:
        """Whether the estimate of a size lies between measurements: beyond the largest it is a guess."""
        return bool(self._sizes) and size <= self._sizes[-1]

    def largest(self, within_s: float, most: int) -> int:
        """The most items, up to `most`, whose estimate is within a time; 0: not even one.

        Estimates need not grow with the size; the answer is found by halving, as if they did.
        """
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.estimate_s(middle) <= within_s:
                low = middle
            else:
                high = middle - 1
        return low

    def measured(self) -> dict[int, float]:
        """Estimate per measured size."""
        return {size: self._measured[size] for size in self._sizes}

    def _forget_seeds(self) -> None:
        for size in self._seeds:
            self._sizes.remove(size)
            del self._measured[size]
        self._seeds.clear()
        self._estimates.clear()

    def _worked_out(self, size: int) -> float:
        sizes = self._sizes
        if not sizes:
            return 0.0
        measured = self._measured
        if size in measured:
            return measured[size]
        above = bisect.bisect_left(sizes, size)
        if above == 0:  # fewer items take no longer than the smallest batch that was measured
            return measured[sizes[0]]
        if above == len(sizes):
            if (
                len(sizes) == 1
            ):  # one point says nothing about the slope: proportional is the safe side
                return measured[sizes[0]] * size / sizes[0]
            above -= 1
        left, right = sizes[above - 1], sizes[above]
        left_s, right_s = measured[left], measured[right]
        slope = max(0.0, (right_s - left_s) / (right - left))
        return max(left_s if size > left else 0.0, right_s + slope * (size - right))
