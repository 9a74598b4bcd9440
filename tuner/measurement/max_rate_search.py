"""Search for the highest open-loop rate within a latency limit.

Growing steps bracket that rate; a miss is retried once. Then the rate walks up after a success and
down after a miss (up-and-down method: Dixon and Mood, JASA 43:109, 1948). Steps shrink at turns and
grow after three identical results (Kesten, Annals of Mathematical Statistics 29:41, 1958). The
walk's geometric mean is the rate at which half of the loads keep the limit.
"""

from __future__ import annotations

import math

import numpy as np

from tuner.measurement import summary
from tuner.settings.measurement import RATE_LOADS
from tuner.values.request_records import RequestRecords

FIRST_STEP = 1.25
"""Factor between the first two rates; each step squares the one before: 1.56, 2.4, 6.0."""
MAX_STEP = 6.0
MIN_REQUESTS = 10
"""Number of due requests below which a rate cannot show 1 % misses."""
ENCLOSED = 1.3
WALKED = 8
MIN_WALK, FIRST_WALK, MAX_WALK = 1.06, 1.15, 1.4
ALIKE = 3
MAX_MISSES = 0.01


class MaxRateSearch:
    """Search for a configuration's highest rate: try `next_per_s` and `tell`, until it is None."""

    def __init__(
        self, first_per_s: float, *, min_per_s: float = 0.0, most: int = RATE_LOADS
    ) -> None:
        """Start at `first_per_s`; try at most `most` rates, all later ones at least `min_per_s`."""
        if not (first_per_s > 0 and math.isfinite(first_per_s)):
            raise ValueError(f"first rate {first_per_s}, expected a finite number above 0")
        self.kept_per_s: float | None = None
        self.missed_per_s: float | None = None
        self._first_per_s = first_per_s
        self._min_per_s = min_per_s
        self._left = most
        self._step = FIRST_STEP
        self._is_again = False
        self._walked: list[float] = []
        self._walk_per_s: float | None = None
        self._last: bool | None = None
        self._alike = 0

    @property
    def per_s(self) -> float | None:
        """Rate at which loads begin to miss the limit, or None if no rate kept it."""
        if self.kept_per_s is None:
            return None
        if self._walk_per_s is None or not self._walked:
            return self.kept_per_s
        rates = [*self._walked[1:], self._walk_per_s]
        return math.exp(sum(map(math.log, rates)) / len(rates))

    @property
    def next_per_s(self) -> float | None:
        """Rate to try next, or None once the search is over."""
        kept, missed = self.kept_per_s, self.missed_per_s
        if not self._left:
            return None
        if self._walk_per_s is not None:
            return None if len(self._walked) == WALKED else self._walk_per_s
        if kept is None and missed is None:
            return self._first_per_s
        if kept is None:
            assert missed is not None
            lower = missed / self._step
            return lower if lower >= self._min_per_s else None
        if missed is None:
            return kept * self._step
        return math.sqrt(kept * missed)

    def tell(self, *, is_kept: bool) -> None:
        """Record whether `next_per_s` kept the limit; before the walk, a miss is retried once."""
        rate = self.next_per_s
        assert rate is not None, "the search is over"
        self._left -= 1
        if self._walk_per_s is not None:
            self._walk(rate, is_kept=is_kept)
        elif is_kept or self._is_again:
            self._enclose(rate, is_kept=is_kept)
        else:
            self._is_again = True

    def _enclose(self, rate: float, *, is_kept: bool) -> None:
        self._is_again = False
        is_first = self.kept_per_s is None and self.missed_per_s is None
        if is_kept:
            self.kept_per_s = rate
        else:
            self.missed_per_s = rate
        kept, missed = self.kept_per_s, self.missed_per_s
        if kept is None or missed is None:
            if not is_first:
                self._step = min(MAX_STEP, self._step**2)
        elif missed <= ENCLOSED * kept:
            self._walk_per_s = math.sqrt(kept * missed)
            self._step = min(FIRST_WALK, max(MIN_WALK, math.sqrt(missed / kept)))

    def _walk(self, rate: float, *, is_kept: bool) -> None:
        self._walked.append(rate)
        if self._last is not None and is_kept != self._last:
            self._step = max(MIN_WALK, self._step**0.6)
            self._alike = 0
        self._alike += 1
        if self._alike >= ALIKE:
            self._step = min(MAX_WALK, self._step**1.6)
        self._last = is_kept
        following = rate * self._step if is_kept else rate / self._step
        self._walk_per_s = max(following, min(rate, self._min_per_s))


def is_kept(records: RequestRecords, *, limit_s: float, warmup_s: float, seconds: float) -> bool:
    """Whether 99 % of the measured requests met a limit on latency since they were due."""
    measured = summary.is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=True)
    took_s = records.finished_s - records.intended_s
    missed = measured & ~(summary.is_ok(records) & (took_s <= limit_s))
    due = int(np.count_nonzero(measured))
    return due > 0 and int(np.count_nonzero(missed)) <= MAX_MISSES * due
