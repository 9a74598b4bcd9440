"""How long a model's actions take on one kind of worker: the most of the last measurements, and a guard.

In: seconds that batches of the sizes took. Out: seconds that the next one will hardly exceed. A size that was
neither measured nor told lies on the line between its neighbours. Clockwork's predictor (OSDI'20, section
5.1) takes the 99th percentile of the last 10 measurements, which is their maximum.

A measurement is the sum of a batch's stages, inputs, model and outputs, for they run one after another on the
executor's thread. Its maximum is a better prediction than the sum of the stages' own maxima: with a guard that
makes both the same on average, fewer batches exceed it (docs/decisions/0016).

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
"""Measurements that count, as in Clockwork: an older one is forgotten, so that a worker may change."""


class Window:
    """The last measurements of one thing, which takes about the same time each time."""

    __slots__ = ("_guard", "_seed_s", "_seen", "worth_s")

    def __init__(self, seed_s: float, guard: float) -> None:
        """What a first measurement, or a profile, says; `guard` is a share of it."""
        self._guard = 1.0 + guard
        self._seed_s = seed_s
        self._seen: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self.worth_s = seed_s * self._guard

    def observe(self, took_s: float) -> None:
        """One more measurement; the seed is forgotten with the first."""
        self._seen.append(took_s)
        self.worth_s = max(self._seen) * self._guard

    def doubt(self) -> bool:
        """Forget the longest measurement, back to the seed at last; returns whether it is worth less now.

        It is never worth more: a seed that is longer than what was measured does not come back.
        """
        before_s = self.worth_s
        if self._seen:
            self._seen.remove(max(self._seen))
        doubted_s = max(self._seen, default=self._seed_s) * self._guard
        self.worth_s = min(before_s, doubted_s)
        return self.worth_s < before_s


class Ways(NamedTuple):
    """How every number of items is run in the least time."""

    sizes: tuple[int, ...]
    """Items of the batches that are worth it, ascending, from 1."""
    worth_s: tuple[float, ...]
    """Seconds of these."""
    quickest_s: tuple[float, ...]
    """Seconds of a number of items, from none, in the best batches."""


_NO_WAYS = Ways((), (), (0.0,))


class Durations:
    """Batches of one model, by size.

    Not every number of items is worth a batch of its own: where batches are padded to the next size that was
    compiled, five items take less time as four and one than as eight. `sizes` are those for which one batch is
    the quickest way.

    Attributes:
        sizes: items of the batches that may be run, ascending, from 1.
        worth_s: seconds, by the place of a size in `sizes`.
        item_s: seconds of an item in the largest batch.
        more_s: seconds that one item more costs, by how many are there: `more_s[0]` is a batch of one. Beyond
            the largest size the pattern starts again.
    """

    __slots__ = (
        "_alike",
        "_batch_s",
        "_guard",
        "_seeds_s",
        "_ways",
        "_windows",
        "item_s",
        "more_s",
        "sizes",
        "worth_s",
    )

    def __init__(
        self, batch_s: Mapping[int, float], *, most: int, guard: float, pads: bool = False
    ) -> None:
        """Nothing is measured yet.

        Args:
            batch_s: items -> seconds, as a profile has them; one entry at least.
            most: items of the largest batch that is to be run.
            guard: share by which the next batch may exceed the longest of the last ones.
            pads: whether a batch of another size takes as long as the next larger one that is told.
        """
        told = tuple(sorted(batch_s.items()))
        self._guard = guard
        self._alike, self._seeds_s = _told(told, min(most, told[-1][0]), pads)
        self._batch_s = [seed_s * (1.0 + guard) for seed_s in self._seeds_s]
        """Of every number of items, in one batch."""
        self._windows: dict[int, Window] = {}
        """Of batches that were measured, by the least number of items that takes as long."""
        self._take(_first_ways(tuple(self._batch_s)))

    def observe(self, count: int, took_s: float) -> None:
        """A batch of so many items took so long; one that is not made any more tells nothing."""
        if not 0 < count <= len(self._alike):
            return
        first = self._alike[count - 1].start
        window = self._windows.get(first)
        if window is None:
            window = self._windows[first] = Window(self._seeds_s[first - 1], self._guard)
        window.observe(took_s)
        if window.worth_s != self._batch_s[first - 1]:
            self._changed([first])

    def doubt(self) -> bool:
        """Forget the longest measurement of each size; returns whether one is worth less now."""
        lower = [first for first, window in self._windows.items() if window.doubt()]
        if lower:
            self._changed(lower)
        return bool(lower)

    def _changed(self, windows: Sequence[int]) -> None:
        """These windows are worth something else: so are batches of all numbers of items that they stand for."""
        for first in windows:
            alike = self._alike[first - 1]
            self._batch_s[first - 1 : alike.stop - 1] = [self._windows[first].worth_s] * len(alike)
        self._take(_ways(self._batch_s, self._ways, min(windows)))

    def _take(self, ways: Ways) -> None:
        """Batches are run in these ways."""
        self._ways = ways
        self.sizes, self.worth_s, quickest_s = ways
        self.item_s = self.worth_s[-1] / self.sizes[-1]
        self.more_s = tuple(map(operator.sub, quickest_s[1:], quickest_s))

    def quickest_s(self, count: int) -> float:
        """Seconds that so many items take in the best batches."""
        quickest_s = self._ways.quickest_s
        whole, rest = divmod(count, len(quickest_s) - 1)
        return whole * quickest_s[-1] + quickest_s[rest]


@functools.lru_cache(maxsize=256)
def _told(
    told: tuple[tuple[int, float], ...], most: int, pads: bool
) -> tuple[tuple[range, ...], tuple[float, ...]]:
    """What a profile tells of batches of up to so many items; asked for once for all models alike.

    Returns:
        The numbers of items whose batches take as long, and their seconds, both by the number of items less one.
    """
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


def _ways(batch_s: Sequence[float], known: Ways, first: int) -> Ways:
    """The quickest way for every number of items, where it is known for those below the first that changed."""
    place = bisect.bisect_left(known.sizes, first)
    sizes, worth_s = list(known.sizes[:place]), list(known.worth_s[:place])
    quickest_s = list(known.quickest_s[:first])
    for count in range(first, len(batch_s) + 1):
        alone_s = batch_s[count - 1]
        half = count // 2  # a split is the same from both ends
        split_s = min(
            map(operator.add, quickest_s[1 : half + 1], quickest_s[count - 1 : half - 1 : -1]),
            default=math.inf,
        )
        if alone_s <= split_s:
            sizes.append(count)
            worth_s.append(alone_s)
        quickest_s.append(max(quickest_s[-1], min(alone_s, split_s)))
    return Ways(tuple(sizes), tuple(worth_s), tuple(quickest_s))


@functools.lru_cache(maxsize=256)
def _first_ways(batch_s: tuple[float, ...]) -> Ways:
    """Those of models of which nothing is measured yet, worked out once for all that are alike."""
    return _ways(batch_s, _NO_WAYS, 1)


def _between(told: Sequence[tuple[int, float]], size: int) -> float:
    """Seconds of a size that a profile may lack."""
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
