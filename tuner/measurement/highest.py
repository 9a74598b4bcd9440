"""The highest rate of an open loop that keeps a limit: which rate to try next, and what was found.

In: whether a rate kept the limit, one after the other. Out: the next one to try, and at the end the rate around
which loads begin to miss it. Pure.

Whether a load keeps a limit on p99 is decided by few requests and by the machine's moment, so no single load is
believed. Two rates that enclose the limit are found first, in steps that grow, a miss being tried once more. From
between them on the rate is walked: up after a load that kept the limit, down after one that did not, by steps that
get smaller where the answers turn and larger where three are the same (the up-and-down method: Dixon and Mood,
Journal of the American Statistical Association 43:109, 1948; steps as of accelerated stochastic approximation:
Kesten, Annals of Mathematical Statistics 29:41, 1958). The mean of the rates of the walk is where half of the
loads keep the limit, and one bad step costs a step.
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
ENCLOSED = 1.3
"""Ratio of a rate that did not keep the limit to one that did, from which the walk begins between them."""
WALKED = 8
"""Rates of the walk."""
LEAST_WALK, FIRST_WALK, MOST_WALK = 1.06, 1.15, 1.4
"""Factor of a step of the walk: the least, the first at most, and the most."""
ALIKE = 3
"""Answers in a row that are the same, from which a step grows."""
MOST_MISSES = 0.01
"""Share of the requests that may miss the limit: it is one on p99."""


class Highest:
    """Where the search for one configuration's rate stands.

    ```
    found = Highest(400.0)
    while (rate := found.next_per_s) is not None:
        found.tell(is_kept=keeps(rate))
    found.per_s  # None where no rate kept the limit
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
        """The highest that kept the limit before the walk."""
        self.missed_per_s: float | None = None
        """The lowest that did not."""
        self._first_per_s = first_per_s
        self._least_per_s = least_per_s
        self._left = most
        self._step = FIRST_STEP
        self._is_again = False
        self._walked: list[float] = []
        self._walk_per_s: float | None = None
        """The next rate of the walk; None before it."""
        self._last: bool | None = None
        self._alike = 0

    @property
    def per_s(self) -> float | None:
        """The rate around which loads begin to miss the limit; None where no rate kept it."""
        if self.kept_per_s is None:
            return None
        if self._walk_per_s is None or not self._walked:
            return self.kept_per_s
        rates = [*self._walked[1:], self._walk_per_s]
        return math.exp(sum(map(math.log, rates)) / len(rates))

    @property
    def next_per_s(self) -> float | None:
        """The rate to try next; None where it is enough."""
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
            return lower if lower >= self._least_per_s else None
        if missed is None:
            return kept * self._step
        return math.sqrt(kept * missed)

    def tell(self, *, is_kept: bool) -> None:
        """Whether `next_per_s` kept the limit; before the walk one that did not is tried once more."""
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
                self._step = min(MOST_STEP, self._step**2)
        elif missed <= ENCLOSED * kept:
            self._walk_per_s = math.sqrt(kept * missed)
            self._step = min(FIRST_WALK, max(LEAST_WALK, math.sqrt(missed / kept)))

    def _walk(self, rate: float, *, is_kept: bool) -> None:
        self._walked.append(rate)
        if self._last is not None and is_kept != self._last:
            self._step = max(LEAST_WALK, self._step**0.6)
            self._alike = 0
        self._alike += 1
        if self._alike >= ALIKE:
            self._step = min(MOST_WALK, self._step**1.6)
        self._last = is_kept
        following = rate * self._step if is_kept else rate / self._step
        self._walk_per_s = max(following, min(rate, self._least_per_s))


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
