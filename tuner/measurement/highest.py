"""The highest rate of an open loop that keeps a limit: which rate to try next, and whether one was kept.

In: whether a rate kept the limit, one after the other. Out: the next one to try, and at the end the
highest that kept it. It looks for two rates that enclose the limit, in steps that grow from 1.25 times
on, and halves what lies between them on the log scale, until they are `CLOSE` or the tries are used up.
That a lower rate keeps the limit better is taken for granted. Pure.
"""

from __future__ import annotations

import math

import numpy as np

from tuner.measurement import summary
from tuner.settings import RATE_LOADS
from tuner.values import RequestRecords

FIRST_STEP = 1.25
"""Factor between the first two rates; each step is the square of the one before: 1.56, 2.4, 6.0."""
MOST_STEP = 6.0
LEAST_REQUESTS = 10
"""Requests due in a measured part, below which a rate tells nothing of a limit on one in a hundred."""
CLOSE = 1.05
"""Ratio of a rate that did not keep the limit to one that did at which it is enough."""
MOST_MISSES = 0.01
"""Share of the requests that may miss the limit: it is one on p99."""


class Highest:
    """Where the search for one configuration's rate stands.

    ```
    found = Highest(400.0)
    while (rate := found.next_per_s) is not None:
        found.tell(is_kept=keeps(rate))
    found.kept_per_s  # None where no rate kept the limit
    ```
    """

    def __init__(
        self, first_per_s: float, *, least_per_s: float = 0.0, most: int = RATE_LOADS
    ) -> None:
        """Keep what is given.

        Args:
            first_per_s: rate to begin with, above 0.
            least_per_s: below it no rate is tried but the first.
            most: rates that are tried.
        """
        if not (first_per_s > 0 and math.isfinite(first_per_s)):
            raise ValueError(f"first rate {first_per_s}, expected a finite number above 0")
        self.kept_per_s: float | None = None
        """The highest that kept the limit."""
        self.missed_per_s: float | None = None
        """The lowest that did not."""
        self._first_per_s = first_per_s
        self._least_per_s = least_per_s
        self._left = most
        self._step = FIRST_STEP
        self._is_again = False

    @property
    def next_per_s(self) -> float | None:
        """The rate to try next; None where it is enough."""
        kept, missed = self.kept_per_s, self.missed_per_s
        if not self._left:
            return None
        if kept is None and missed is None:
            return self._first_per_s
        if kept is None:
            assert missed is not None
            lower = missed / self._step
            return lower if lower >= self._least_per_s else None
        if missed is None:
            return kept * self._step
        return math.sqrt(kept * missed) if missed > CLOSE * kept else None

    def tell(self, *, is_kept: bool, is_clear: bool = True) -> None:
        """Whether `next_per_s` kept the limit.

        Args:
            is_kept: whether it did.
            is_clear: of a rate that did not: whether that was no hiccup of the machine; otherwise it is the next
                rate once more, and then counts.
        """
        rate = self.next_per_s
        assert rate is not None, "the search is over"
        if not (is_kept or is_clear or self._is_again):
            self._left -= 1
            self._is_again = True
            return
        self._is_again = False
        is_first = self.kept_per_s is None and self.missed_per_s is None
        if is_kept:
            self.kept_per_s = rate
        else:
            self.missed_per_s = rate
        self._left -= 1
        if not is_first:
            self._step = min(MOST_STEP, self._step**2)


def is_kept(records: RequestRecords, *, limit_s: float, warmup_s: float, seconds: float) -> bool:
    """Whether all but one request in a hundred of those that were due were answered within a limit.

    Args:
        records: of an open loop.
        limit_s: from when a request was due.
        warmup_s: end of the warm-up.
        seconds: length of the measured part.
    """
    measured = summary.is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=True)
    took_s = records.finished_s - records.intended_s
    missed = measured & ~(summary.is_ok(records) & (took_s <= limit_s))
    due = int(np.count_nonzero(measured))
    return due > 0 and int(np.count_nonzero(missed)) <= MOST_MISSES * due
