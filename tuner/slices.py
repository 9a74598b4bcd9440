"""How the launches of configurations that are compared side by side are cut into slices that alternate.

In: how long round trips and launches take. Out: lengths and numbers of slices. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

SLICE_S = 0.1
"""Measured in each slice: a period of the CPU quota. Shorter slices leave less of the machine's moment in a ratio,
and lose more to their beginnings (benchmarks/verdict/slices.py)."""
PARTS = 8
"""Slices that a launch is cut into where it is measured for a set time, at most."""
DROPPED_S = 0.06
"""Of each slice, before it: the first batches, and the CPU quota's period that had begun before."""
ROUND_TRIPS, DROPPED_ROUND_TRIPS = 6.0, 2.0
"""The same in round trips of the slowest configuration, where these take longer."""
LEAST_QUARTETS = 2
"""Slices A B B A of one launch: from two on, what launches have of their own is told from what slices have."""
MOST_QUARTETS = 8
"""Slices A B B A of one launch, where it is long enough with fewer."""
EXPECTED_LAUNCH_S = 0.3
"""Of new replicas on a running server."""
SWITCH_S = 0.03
"""From one slice to the next, beside both: connections, and what host and replicas tell."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """How each launch is cut."""

    seconds: float
    """Measured in each slice."""
    dropped_s: float
    """Of load before them."""
    quartets: int
    """A B B A, so many times."""

    @classmethod
    def of(
        cls, *, round_trip_s: float, launch_s: float, measured_s: float = 0.0, roles: int = 2
    ) -> Self:
        """For configurations whose slowest answers after so long, and which take so long to launch.

        A launch is worth slices of its own length: what launches differ by, and what quartets differ by, are of
        one size, and then the time is best spent in equal parts (Cochran, Sampling Techniques, section 10.6).

        Args:
            round_trip_s: mean, of the slowest.
            launch_s: of each, in the mean.
            measured_s: that a launch is measured for at least; 0 where the mean alone is compared.
            roles: that are compared.
        """
        seconds = max(SLICE_S, ROUND_TRIPS * round_trip_s, measured_s / PARTS)
        seconds = math.ceil(10 * seconds - 1e-9) / 10
        dropped_s = max(DROPPED_S, DROPPED_ROUND_TRIPS * round_trip_s)
        quartet_s = 2 * roles * (seconds + dropped_s)
        least = math.ceil(measured_s / (2 * seconds) - 1e-9)
        worth = min(MOST_QUARTETS, round(math.sqrt(roles * launch_s / quartet_s)))
        return cls(seconds=seconds, dropped_s=dropped_s, quartets=max(LEAST_QUARTETS, least, worth))

    @classmethod
    def whole(cls, load_s: float) -> Self:
        """One load of so long, warm-up included: a launch that is not cut."""
        return cls(seconds=load_s / 2, dropped_s=0.0, quartets=1)

    @property
    def loaded_s(self) -> float:
        """Expected time of the slices of one launch."""
        return 2 * self.quartets * (self.seconds + self.dropped_s + SWITCH_S)
