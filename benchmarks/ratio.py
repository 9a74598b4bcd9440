"""The ratio of two servers over paired rounds: geometric mean, 95 % interval, and what that shows.

In: both rates of each round. Out: a `Ratio`, its text, and one word against a target. The interval is
Student's on the rounds' log ratios; a round is one draw, whatever it counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tuner.measurement.comparison import ratio_interval

MET = "Met"
MISSED = "MISSED"
NOT_SHOWN = "no difference shown"
WORDS = (MISSED, NOT_SHOWN, MET)
"""The worst first: of several targets, a page's word is that of the worst."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ours over another one's, of paired rounds."""

    rounds: tuple[float, ...]
    mean: float
    """Geometric."""
    low: float
    """Ends of the 95 % interval of the mean."""
    high: float

    def text(self) -> str:
        """As a page says it."""
        return f"{self.mean:.2f} x [{self.low:.2f}, {self.high:.2f}] over {len(self.rounds)} rounds"

    def outcome(self, *, least: float, above: float = 1.0) -> str:
        """One word for it.

        Args:
            least: what the mean must reach.
            above: what the whole interval must lie above.

        Returns:
            `MET` where both hold; else `NOT_SHOWN` where the interval holds 1; else `MISSED`.
        """
        if self.mean >= least and self.low > above:
            return MET
        return NOT_SHOWN if self.low <= 1.0 <= self.high else MISSED


def paired(ours: Sequence[float], others: Sequence[float]) -> Ratio:
    """The ratio of rounds that stood next to each other: the first of one belongs to the first of the other.

    A single round, as of a quick run, has no interval: it reaches from 0 to infinity.
    """
    ratios = tuple(mine / other for mine, other in zip(ours, others, strict=True))
    if len(ratios) == 1:
        return Ratio(rounds=ratios, mean=ratios[0], low=0.0, high=float("inf"))
    mean, interval = ratio_interval(ours, others)
    return Ratio(rounds=ratios, mean=mean, low=interval.low, high=interval.high)
