"""Request rates, and an admission margin learned from dropped requests. Pure."""

from __future__ import annotations

import math

STEP = 0.01
"""Increase of the margin for each dropped request, as a share of a request's time."""
MAX_DROPPED = 3e-5
"""Number of dropped requests per executed item above which the margin grows.
See Robbins and Monro, Annals of Mathematical Statistics 22, 1951."""
FIRST_MARGIN, MAX_MARGIN = 0.2, 0.5
ONE_CAUSE_S = 0.1
"""Time within which dropped requests count as one, since they probably share a cause."""
REMEMBERS_S = 10.0
"""Time constant of the decay of rates."""
TICK_S = 1e-3 * REMEMBERS_S
FIRST_S = 0.5

RELATIVE_DEADLINE_RECOVERS = 0.01
"""Fraction of the way that the shortest relative deadline moves towards a longer one."""


class Rate:
    """Recent amount per second, with exponentially decaying weights."""

    __slots__ = ("_at_s", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._at_s = -math.inf

    def add(self, amount: float, now_s: float) -> None:
        """Add an amount; decay is applied at most once per `TICK_S`."""
        if now_s - self._at_s > TICK_S:
            self._seen *= math.exp((self._at_s - now_s) / REMEMBERS_S)
            self._at_s = now_s
        self._seen += amount

    def per_s(self, now_s: float, since_s: float, taken: float = 0.0) -> float:
        """Return the rate since `since_s`, assuming the rate `taken` for `FIRST_S` before."""
        left = math.exp((since_s - now_s) / REMEMBERS_S)
        first_s, counted_s = FIRST_S * left, REMEMBERS_S * (1.0 - left)
        seen = self._seen * math.exp((self._at_s - now_s) / REMEMBERS_S)
        return (seen + taken * first_s) / (counted_s + first_s)


class AdmissionMargin:
    """The share of a request's time that is kept free when it is admitted."""

    __slots__ = ("_again_s", "share")

    def __init__(self) -> None:
        self.share = FIRST_MARGIN
        self._again_s = -math.inf

    def record_drop(self, now_s: float) -> None:
        """Record that an admitted request was dropped."""
        if now_s >= self._again_s:
            self._again_s = now_s + ONE_CAUSE_S
            self.share = min(MAX_MARGIN, self.share + STEP)

    def ran(self, items: int) -> None:
        """Record executed items."""
        self.share = max(0.0, self.share - STEP * MAX_DROPPED * items)


def relative_deadline_s(before_s: float, within_s: float) -> float:
    """Return the shortest recent relative deadline, updated with a new one."""
    if within_s < before_s:
        return within_s
    return before_s + RELATIVE_DEADLINE_RECOVERS * (within_s - before_s)
