"""Interval of a value."""

from __future__ import annotations

import dataclasses

MAX_WIDTH = 4.0
"""Ratio of the ends (half to double) beyond which an interval around 1 shows nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Closed 95 % interval; an end is None if unknown."""

    low: float | None
    high: float | None

    @property
    def is_vague(self) -> bool:
        """Whether the interval of a ratio is too wide to show anything (`MAX_WIDTH`)."""
        if self.low is None or self.high is None:
            return False
        return self.low <= 1 <= self.high and self.high > MAX_WIDTH * self.low

    @property
    def inverse(self) -> Interval:
        """Interval of the inverse ratio."""
        return Interval(
            low=None if not self.high else 1 / self.high,
            high=None if not self.low else 1 / self.low,
        )


UNKNOWN = Interval(low=None, high=None)
