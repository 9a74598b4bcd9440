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

import collections
import itertools
import math
from collections.abc import Mapping, Sequence

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
        """Forget the longest measurement, back to the seed at last; returns whether it is worth less now."""
        before_s = self.worth_s
        if self._seen:
            self._seen.remove(max(self._seen))
        self.worth_s = max(self._seen, default=self._seed_s) * self._guard
        return self.worth_s < before_s


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

    __slots__ = ("_most", "_of", "_quickest_s", "_windows", "item_s", "more_s", "sizes", "worth_s")

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
        told = sorted(batch_s)
        self._most = min(most, told[-1])
        counts = range(1, self._most + 1)
        if pads:
            measured = [next(size for size in told if size >= count) for count in counts]
            self._of = {count: measured[count - 1] for count in counts}
        else:
            self._of = {count: count for count in counts}
        self._windows = {
            size: Window(_between(batch_s, told, size), guard) for size in set(self._of.values())
        }
        self._quickest_s: list[float] = []
        self.sizes: tuple[int, ...] = ()
        self.worth_s: list[float] = []
        self.item_s = 0.0
        self.more_s: list[float] = []
        self._work_out()

    def observe(self, count: int, took_s: float) -> None:
        """A batch of so many items took so long; one that is not made any more tells nothing."""
        size = self._of.get(count)
        if size is None:
            return
        window = self._windows[size]
        before_s = window.worth_s
        window.observe(took_s)
        if window.worth_s != before_s:
            self._work_out()

    def doubt(self) -> bool:
        """Forget the longest measurement of each size; returns whether one is worth less now."""
        lower = [window.doubt() for window in self._windows.values()]
        if any(lower):
            self._work_out()
        return any(lower)

    def _work_out(self) -> None:
        """The quickest way for every number of items, and what follows from it."""
        quickest_s = [0.0]
        sizes, worth_s = [], []
        for count in range(1, self._most + 1):
            alone_s = self._windows[self._of[count]].worth_s
            split_s = min(
                (quickest_s[first] + quickest_s[count - first] for first in range(1, count)),
                default=math.inf,
            )
            if alone_s <= split_s:
                sizes.append(count)
                worth_s.append(alone_s)
            quickest_s.append(max(quickest_s[-1], min(alone_s, split_s)))
        self.sizes, self.worth_s = tuple(sizes), worth_s
        self.item_s = worth_s[-1] / sizes[-1]
        self._quickest_s = quickest_s
        self.more_s = [after - before for before, after in itertools.pairwise(quickest_s)]

    def quickest_s(self, count: int) -> float:
        """Seconds that so many items take in the best batches."""
        whole, rest = divmod(count, self._most)
        return whole * self._quickest_s[-1] + self._quickest_s[rest]


def _between(batch_s: Mapping[int, float], told: Sequence[int], size: int) -> float:
    """Seconds of a size that a profile may lack."""
    if size in batch_s:
        return batch_s[size]
    below = [each for each in told if each < size]
    above = [each for each in told if each > size]
    if not below:
        return batch_s[above[0]]
    if not above:
        return batch_s[below[-1]] * size / below[-1]
    left, right = below[-1], above[0]
    share = (size - left) / (right - left)
    return batch_s[left] + share * (batch_s[right] - batch_s[left])
