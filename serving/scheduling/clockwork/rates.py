"""What the past has taught of requests: how many come, and how much of their time is better kept free.

Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

import math

STEP = 0.01
"""By how much one request that was admitted and dropped raises the reserve: a hundredth of a request's time."""
MOST_DROPPED = 3e-5
"""Share of the admitted that may be dropped: where it is more, the reserve grows (Robbins and Monro, Annals of
Mathematical Statistics 22, 1951)."""
FIRST_RESERVE, LARGEST_RESERVE = 0.2, 0.5
ONE_CAUSE_S = 0.1
"""Drops within this count once: a stall or a worker that is lost takes many with it, and tells nothing of load."""
REMEMBERS_S = 10.0
"""Rates are those of about so long."""
LEAST_S = 0.5
"""And of so long at least, at the beginning."""


class Rate:
    """How much of something there was in a second, of late: what is older counts less, exponentially."""

    __slots__ = ("_at_s", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._at_s = -math.inf

    def add(self, amount: float, now_s: float) -> None:
        """There was so much now."""
        self._seen = self._seen * math.exp((self._at_s - now_s) / REMEMBERS_S) + amount
        self._at_s = now_s

    def per_s(self, now_s: float, since_s: float) -> float:
        """So much in a second; nothing was counted before `since_s`."""
        counted_s = REMEMBERS_S * -math.expm1((since_s - now_s) / REMEMBERS_S)
        return self._seen * math.exp((self._at_s - now_s) / REMEMBERS_S) / max(counted_s, LEAST_S)


class Reserve:
    """What share of a request's time is kept free when it is admitted, as drops have taught."""

    __slots__ = ("_again_s", "share")

    def __init__(self) -> None:
        self.share = FIRST_RESERVE
        self._again_s = -math.inf

    def dropped(self, now_s: float) -> None:
        """One that was admitted became hopeless; what does at about the same time has the same cause."""
        if now_s >= self._again_s:
            self._again_s = now_s + ONE_CAUSE_S
            self.share = min(LARGEST_RESERVE, self.share + STEP)

    def ran(self, items: int) -> None:
        """So many were answered."""
        self.share = max(0.0, self.share - STEP * MOST_DROPPED * items)
