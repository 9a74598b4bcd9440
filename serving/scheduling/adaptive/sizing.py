"""How large a batch may be and how long it waits to get there: the batching policies, one interface.

    fixed     `max_size` and `timeout_us`, as they are set
    aimd      one item more after each full batch within its time, a tenth fewer after one beyond it
    quantile  the largest size whose 99th percentile, by a regression on size, is within its time
    delayed   `max_size`, waiting only while company is expected to come within `timeout_us`

The time of a batch is a third of `batching.objective_ms`: at worst a request meets one running batch
and one that is buffered before its own. `aimd` and `quantile` are Clipper's (NSDI'17, section 4.3.1),
`delayed` is its section 4.3.2. `max_size` bounds all of them.

Pure: times are arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.settings import BatchingSettings

BATCHES_PER_REQUEST = 3
"""One that runs, one that is buffered, its own: what a request meets in a worker with two slots."""
BACK_OFF = 0.9
"""Clipper's: small, for a model's latency is stable, and one slow batch says little."""
QUANTILE = 0.99
_KEPT_PER_SIZE = 8
_KEPT_SIZES = 24
_FORGOTTEN_AFTER = 4096
"""Batches after which what a size took is no longer believed."""
_PATIENCE = 16
"""Full batches in time, one after another, after which what larger ones took is forgotten: it may have been a stall,
and a size that it rules out would not be tried. Twice as many after each time that the next miss came sooner, up to"""
_MOST_PATIENCE = 128
"""for each batch that was late then, for several may be with workers: fewer than one of a hundred are."""
_FRESH = 32
"""Batches for which a measurement tells what batches take now."""
_OUT_OF_LINE = 1.3
"""Times as long as those foretell, noise included, from which older ones tell of a stall or of a slow spell."""
_SEVERAL = 2
"""Of a size that must be out of line: one may be the rare batch that the quantile is to know of."""
_REFIT_EVERY = 16
_FEWEST = 8
_GROWTH = 1.5
"""A regression is not believed beyond this multiple of the largest batch that was seen."""
_STEPS = 60
_RATE_WEIGHT = 0.1
"""Of the newest gap between arrivals in their moving average: ten arrivals tell the rate."""


class Sizing(Protocol):
    """A batching policy."""

    size: int
    """Most items in the next batch."""
    watches_arrivals: bool
    """Whether `arrived` is to be called."""

    def wait_s(self, waiting: int) -> float:
        """How long the oldest of `waiting` items shall wait for company, from its arrival."""
        ...

    def arrived(self, now_s: float) -> None:
        """A request came."""
        ...

    def ran(self, items: int, took_s: float, filled: int) -> None:
        """A batch of so many items took so long in its worker.

        Args:
            items: in it.
            took_s: how long.
            filled: items that it might have had, where the next request did not fit; else the same.
        """
        ...


class Fixed:
    """What the settings say."""

    watches_arrivals = False

    def __init__(self, settings: BatchingSettings) -> None:
        self.size = settings.max_size
        self._wait_s = settings.timeout_us * 1e-6

    def wait_s(self, _waiting: int) -> float:
        """The timeout."""
        return self._wait_s

    def arrived(self, _now_s: float) -> None:
        """Means nothing here."""

    def ran(self, _items: int, _took_s: float, _filled: int) -> None:
        """Means nothing here."""


class Aimd(Fixed):
    """Additive increase, multiplicative decrease."""

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._most = settings.max_size
        self._budget_s = budget_s(settings)
        self._exact = 1.0
        self.size = 1

    def ran(self, _items: int, took_s: float, filled: int) -> None:
        """Grow after a full batch in time, shrink after one that was not."""
        if took_s > self._budget_s:
            self._exact = max(1.0, self._exact * BACK_OFF)
        elif filled >= self.size:
            self._exact = min(float(self._most), self._exact + 1.0)
        self.size = int(self._exact)


class Quantile(Fixed):
    """Quantile regression of batch latency on batch size.

    Each size keeps its last few times, so that a size used for long does not push out the others that
    tell the slope. What is old is forgotten, and so is what stalls and slow spells may have left: after some full
    batches in time all that larger sizes took, and what smaller ones took longer than these did; and what took
    longer than the line foretells through the sizes that ran of late.
    """

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._most = settings.max_size
        self._budget_s = budget_s(settings)
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._batches = 0
        self._next_fit = _FEWEST
        self._in_time = 0
        """Full batches in a row that were."""
        self._largest = 0
        """Of them, in items."""
        self._longest_s = 0.0
        self._patience = _PATIENCE
        self._next_patience = _PATIENCE
        """The same without its bound."""
        self._late = 0
        """Full batches that were late since sizes were forgotten."""
        self._filled = 1
        """Most items that the last full batch might have had."""
        self.size = 1

    def ran(self, items: int, took_s: float, filled: int) -> None:
        """Remember, and fit again now and then; at once where the time was missed, or a size is new, at full size."""
        self._batches += 1
        is_full = filled >= self.size
        if is_full:
            self._filled = self.size
        is_late = is_full and took_s > self._budget_s
        is_new = items not in self._seen
        if is_new:
            self._seen[items] = deque(maxlen=_KEPT_PER_SIZE)
        self._seen[items].append((self._batches, took_s))
        is_trial = is_full and self._count(items, took_s)
        is_urgent = is_trial or (is_late and self.size > 1) or (is_full and is_new)
        if self._batches >= self._next_fit or (is_urgent and self._batches >= _FEWEST):
            self._next_fit = self._batches + _REFIT_EVERY
            self._forget()
            self._forget_out_of_line()
            self.size = self._fitted()

    def _count(self, items: int, took_s: float) -> bool:
        """One full batch more; whether to fit anew, for what contradicts those in time was forgotten."""
        if took_s > self._budget_s:
            if not self._late:
                is_soon = self._in_time < self._patience
                self._next_patience = 2 * self._patience if is_soon else _PATIENCE
            self._late += 1
            self._patience = min(self._next_patience, _MOST_PATIENCE * self._late)
            self._begin_run()
            return False
        self._in_time += 1
        self._largest = max(self._largest, items)
        self._longest_s = max(self._longest_s, took_s)
        if self._in_time < self._patience or self.size >= self._most:
            return False
        is_changed = self._forget_contradictions()
        if is_changed:
            self._late = 0
        self._begin_run()
        return is_changed

    def _begin_run(self) -> None:
        self._in_time = self._largest = 0
        self._longest_s = 0.0

    def _forget_contradictions(self) -> bool:
        """Sizes beyond those in time, for they may be it again, and what others took longer than those did."""
        kept = {
            size: deque((one for one in seen if one[1] <= self._longest_s), _KEPT_PER_SIZE)
            for size, seen in self._seen.items()
            if size <= self._largest
        }
        is_changed = sum(map(len, kept.values())) < sum(map(len, self._seen.values()))
        self._seen = {size: seen for size, seen in kept.items() if seen}
        return is_changed

    def _forget(self) -> None:
        """Sizes that were not used for long, and beyond a number of sizes those that were used longest ago."""
        recent = sorted(self._seen, key=lambda size: -self._seen[size][-1][0])[:_KEPT_SIZES]
        oldest = self._batches - _FORGOTTEN_AFTER
        self._seen = {size: self._seen[size] for size in recent if self._seen[size][-1][0] > oldest}

    def _forget_out_of_line(self) -> None:
        """What took longer than what ran of late foretells, with its noise, and not once alone.

        That tells nothing where a stall bends its line.
        """
        oldest = self._batches - _FRESH
        fresh = [
            (size, took_s)
            for size, seen in self._seen.items()
            for number, took_s in seen
            if number > oldest
        ]
        base_s, slope_s = _line(fresh)
        if base_s < 0.0 or slope_s <= 0.0:
            return
        most = _OUT_OF_LINE * max(took_s / (base_s + slope_s * size) for size, took_s in fresh)
        for size, seen in list(self._seen.items()):
            most_s = most * (base_s + slope_s * size)
            kept = [one for one in seen if one[0] > oldest or one[1] <= most_s]
            if len(seen) - len(kept) >= _SEVERAL:
                self._seen[size] = deque(kept, _KEPT_PER_SIZE)
        self._seen = {size: seen for size, seen in self._seen.items() if seen}

    def _fitted(self) -> int:
        pairs = [(size, took_s) for size, seen in self._seen.items() for _, took_s in seen]
        sizes, seconds = (np.array(column, float) for column in zip(*pairs, strict=True))
        largest = float(sizes.max())
        limit = min(self._most, math.ceil(max(largest, self._filled) * _GROWTH))
        base_s, slope_s = quantile_line(sizes, seconds, QUANTILE)
        if (
            slope_s <= 0.0
        ):  # one size, or nothing but noise: it shrinks in proportion, and grows by a step
            largest_s = float(seconds[sizes == largest].max())
            base_s, slope_s = 0.0, largest_s / largest
            if largest_s <= self._budget_s:
                return limit
        if base_s + slope_s * limit <= self._budget_s:
            return limit
        return max(1, min(limit, int((self._budget_s - base_s) / slope_s)))


class Delayed(Fixed):
    """Waits for company only where company is expected."""

    watches_arrivals = True

    def __init__(self, settings: BatchingSettings) -> None:
        super().__init__(settings)
        self._longest_s = self._wait_s
        self._gap_s = math.inf
        self._last_s: float | None = None

    def arrived(self, now_s: float) -> None:
        """Follow the gap between arrivals; one longer than the timeout begins anew."""
        if self._last_s is not None:
            gap_s = now_s - self._last_s
            if gap_s > self._longest_s or self._gap_s == math.inf:
                self._gap_s = gap_s
            else:
                self._gap_s += _RATE_WEIGHT * (gap_s - self._gap_s)
        self._last_s = now_s

    def wait_s(self, waiting: int) -> float:
        """As long as it should take to fill the batch; not at all where not even one is expected in time."""
        if self._gap_s > self._longest_s:
            return 0.0
        return min(self._longest_s, self._gap_s * max(0, self.size - waiting) + self._gap_s)


POLICIES = {"fixed": Fixed, "aimd": Aimd, "quantile": Quantile, "delayed": Delayed}
"""`batching.policy` -> policy."""


def budget_s(settings: BatchingSettings) -> float:
    """The time that one batch may take."""
    return settings.objective_ms * 1e-3 / BATCHES_PER_REQUEST


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Base and slope by least squares; a slope of 0 where all sizes are equal."""
    count = len(points)
    if not count:
        return 0.0, 0.0
    mean_size = sum(size for size, _ in points) / count
    mean_s = sum(took_s for _, took_s in points) / count
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    if not spread:
        return mean_s, 0.0
    slope_s = sum((size - mean_size) * (took_s - mean_s) for size, took_s in points) / spread
    return mean_s - slope_s * mean_size, slope_s


def quantile_line(
    sizes: NDArray[np.float64], seconds: NDArray[np.float64], quantile: float
) -> tuple[float, float]:
    """Base and slope of the line under which a share of the points lies.

    Linear quantile regression (Koenker and Bassett 1978, Econometrica 46:33) by iteratively reweighted
    least squares: the pinball loss of a residual r is r^2 with the weight (tau or 1 - tau) / |r|.

    Args:
        sizes: (n,) items.
        seconds: (n,) of the batches.
        quantile: from 0 to 1.

    Returns:
        Seconds, and seconds per item; the slope is 0 where all sizes are equal.
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
