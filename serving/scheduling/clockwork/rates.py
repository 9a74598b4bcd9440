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
TICK_S = 1e-3 * REMEMBERS_S
FIRST_S = 0.5
"""For as long as this what was taken to be counts as much as what was."""


class Rate:
    """How much of something there was in a second, of late: what is older counts less, exponentially."""

    __slots__ = ("_at_s", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._at_s = -math.inf

    def add(self, amount: float, now_s: float) -> None:
        """There was so much now; within a thousandth of what it remembers nothing is forgotten, which is cheaper."""
        if now_s - self._at_s > TICK_S:
            self._seen *= math.exp((self._at_s - now_s) / REMEMBERS_S)
            self._at_s = now_s
        self._seen += amount

    def per_s(self, now_s: float, since_s: float, taken: float = 0.0) -> float:
        """So much in a second.

        Args:
            now_s: the time.
            since_s: nothing was counted before; what was then
            taken: is taken to have been so much, which counts as `FIRST_S` and is forgotten as all is.
        """
        left = math.exp((since_s - now_s) / REMEMBERS_S)
        first_s, counted_s = FIRST_S * left, REMEMBERS_S * (1.0 - left)
        seen = self._seen * math.exp((self._at_s - now_s) / REMEMBERS_S)
        return (seen + taken * first_s) / (counted_s + first_s)


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
