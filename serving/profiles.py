"""How long batches of a size take: measured, remembered briefly, and told for any size.

In: sizes and seconds of batches that ran. Out: an estimate that most batches of a size keep. Each
size remembers its last measurements and is worth their 90th percentile, with three to nine of them the
second longest; a size that was not measured lies on the line between its measured neighbours, beyond the
largest on the line through the two largest. While one size alone is known, twice as many items are presumed to
take no longer and more to take so in proportion: were they not tried, nothing would ever tell.

Clockwork's predictor (OSDI'20, section 5.1: the last 10 measurements per model and batch size) takes their 99th
percentile, in effect the maximum; on shared cores one hiccup would then rule the next ten decisions.

A size that looks too long is not run, so nothing would ever tell that it is not. So one that was not run
for a while, and is longer than the sizes around it foretell, is forgotten, to be tried again: one stall
costs one stall. Where the next measurement is as long, it is believed for twice as long. One that is so much
shorter now, and was last as long a while ago, is worth what it takes now: of a size that is run seldom, the last ten
would tell of a slow spell long after it.

What a warm-up has measured stands in for a size until the first batch of it has run.

Pure; times are in seconds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

WINDOW = 10
"""Measurements kept per size, as in Clockwork."""
_RANK = 1
"""Of the sorted measurements, from the largest: the 90th percentile of ten."""
_FEWEST = 3
"""Measurements of which one may be a hiccup; of fewer the longest counts."""


SEEDS_LAST = 100
"""Batches after which no seed is believed any more: a size that one made look too slow would never be tried."""

DOUBTED_AFTER = 20
"""Batches of other sizes after which one that is longer than they foretell is doubted, and"""
DOUBTED_AFTER_S = 0.25
"""seconds that they took together; twice as many after each time that the doubt was wrong, up to"""
_MOST_DOUBLED = 3
"""times: 2 s, so that whatever it was is over then. A size that is too long costs one batch in that time."""
_OUT_OF_LINE = 1.2
"""Times as long as foretold: what is less does no harm, and noise is no stall."""
_TRIED = 2.0
"""Times the items of the only size that is known which are presumed to take no longer."""
_LOOK_EVERY = 8
"""Batches from one look for such sizes to the next."""


class _Size:
    """Measurements of one size."""

    __slots__ = ("doubled", "doubted_s", "next", "ran", "seen", "when")

    def __init__(self) -> None:
        self.seen: list[float] = []
        """The last ones, in a ring."""
        self.when: list[tuple[int, float]] = []
        """Of each its number among the batches of all sizes, and the seconds that all had taken by then."""
        self.next = 0
        """Place of the oldest."""
        self.ran = 0, 0.0
        """The same of the last one."""
        self.doubted_s = 0.0
        """What it was worth when it was forgotten; 0: it was not, or it was tried since."""
        self.doubled = 0
        """Doubts in a row that were wrong."""

    def forget(self) -> None:
        """What was measured."""
        self.seen.clear()
        self.when.clear()
        self.next = 0

    def last_beyond(self, least_s: float) -> tuple[int, float]:
        """When the last one ran that took longer; there is one."""
        return max(
            when for took_s, when in zip(self.seen, self.when, strict=True) if took_s > least_s
        )

    @property
    def worth_s(self) -> float:
        """Most batches take no longer."""
        ranked = sorted(self.seen)
        return ranked[-1 - _RANK] if len(ranked) >= _FEWEST else ranked[-1]


class Profile:
    """Execution times of one model on one kind of worker."""

    __slots__ = (
        "_batches",
        "_estimates",
        "_look",
        "_measured",
        "_seeds",
        "_seeds_last",
        "_seen",
        "_sizes",
        "_spent_s",
    )

    def __init__(self) -> None:
        self._seen: dict[int, _Size] = {}
        self._sizes: list[int] = []
        self._measured: dict[int, float] = {}
        """What each size that was measured is worth."""
        self._estimates: dict[int, float] = {}
        """What was told since one of them changed."""
        self._seeds: set[int] = set()
        """Sizes of which only a warm-up tells anything."""
        self._seeds_last = SEEDS_LAST
        """Batches until they are forgotten."""
        self._batches = 0
        """That were measured."""
        self._spent_s = 0.0
        """Seconds of all of them."""
        self._look = _LOOK_EVERY
        """Number of the batch at which doubtful sizes are looked for."""

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
            elif size not in self._seen:
                self._seeds.add(size)
                self._measured[size] = took_s
                bisect.insort(self._sizes, size)
        self._estimates.clear()

    def observe(self, size: int, took_s: float) -> None:
        """A batch of `size` items took so long in its worker."""
        known = self._seen.get(size)
        if known is None:
            self._seen[size] = known = _Size()
        if not known.seen:
            self._measured_first(size, known, took_s)
        elif (most_s := _OUT_OF_LINE * took_s) < known.worth_s and self._is_old(
            known, known.last_beyond(most_s)
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
        worth_s = known.worth_s
        if worth_s != self._measured.get(size):
            self._measured[size] = worth_s
            self._estimates.clear()
        if self._batches >= self._look:
            self._look = self._batches + _LOOK_EVERY
            self._doubt()

    def estimate_s(self, size: int) -> float:
        """Seconds that a batch of `size` items is expected to take at most; 0 while nothing was seen."""
        known = self._estimates.get(size)
        if known is None:
            known = self._estimates[size] = _told(self._sizes, self._measured, size)
        return known

    @property
    def largest_measured(self) -> int:
        """Items; 0 while nothing was seen."""
        return self._sizes[-1] if self._sizes else 0

    def covers(self, size: int) -> bool:
        """Whether the estimate of a size lies between measurements: beyond the largest it is a guess."""
        return size <= self.largest_measured

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

    def _measured_first(self, size: int, known: _Size, took_s: float) -> None:
        """A size that was not measured, or was forgotten, ran."""
        if known.doubted_s:
            is_longer = took_s * _OUT_OF_LINE >= known.doubted_s
            known.doubled = min(_MOST_DOUBLED, known.doubled + 1) if is_longer else 0
            known.doubted_s = 0.0
        if size in self._seeds:
            self._seeds.remove(size)
        else:
            bisect.insort(self._sizes, size)

    def _is_old(self, known: _Size, when: tuple[int, float]) -> bool:
        """Whether a batch of a size ran a while ago."""
        batch, spent_s = when
        return (
            self._batches - batch >= DOUBTED_AFTER
            and self._spent_s - spent_s >= DOUBTED_AFTER_S * 2.0**known.doubled
        )

    def _doubt(self) -> None:
        """Forget sizes that were not run for a while and are longer than those foretell that were.

        For one that is longer than a larger one which ran later it need not be a while, unless that was wrong before.
        """
        fresh, old = list[int](), list[int]()
        latest, latest_s = 0, math.inf  # of the larger ones, the one that ran last
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
            if worth_s <= _OUT_OF_LINE * _told(fresh, self._measured, size):
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


def _told(sizes: Sequence[int], measured: Mapping[int, float], size: int) -> float:
    """What these sizes, in order, tell of another one; 0 where there are none."""
    if not sizes:
        return 0.0
    above = bisect.bisect_left(sizes, size)
    if above < len(sizes) and sizes[above] == size:
        return measured[size]
    if above == 0:  # fewer items take no longer than the smallest batch that was measured
        return measured[sizes[0]]
    if above == len(sizes):
        if len(sizes) == 1:  # one point says nothing about the slope: twice the size may be tried
            return measured[sizes[0]] * max(1.0, size / (_TRIED * sizes[0]))
        above -= 1
    left, right = sizes[above - 1], sizes[above]
    left_s, right_s = measured[left], measured[right]
    slope = max(0.0, (right_s - left_s) / (right - left))
    return max(left_s if size > left else 0.0, right_s + slope * (size - right))
