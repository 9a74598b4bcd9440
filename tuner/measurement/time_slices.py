"""Layout of the alternating time slices in interleaved evaluations."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

SLICE_S = 0.1
"""Measured time of a slice: a CPU quota period (benchmarks/verdict/slices.py)."""
PARTS = 8
DROPPED_S = 0.06
"""Uncounted start of a slice, for the first batches and a running quota period."""
LATENCIES, DROPPED_LATENCIES = 6.0, 2.0
"""Measured time and uncounted start in mean latencies, used if longer."""
MIN_QUARTETS = 2
MAX_QUARTETS = 8
EXPECTED_STARTUP_S = 0.3
SWITCH_S = 0.03


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlices:
    """Layout of an evaluation's slices."""

    seconds: float
    dropped_s: float
    """Uncounted load before each slice."""
    quartets: int

    @classmethod
    def of(
        cls, *, latency_s: float, startup_s: float, measured_s: float = 0.0, arms: int = 2
    ) -> Self:
        """Plan slices from the slowest arm's mean latency, the mean startup, and `measured_s`.

        Slices get as much time as the startup, which is optimal if evaluations and quartets vary
        equally (Cochran, Sampling Techniques, section 10.6).
        """
        seconds = max(SLICE_S, LATENCIES * latency_s, measured_s / PARTS)
        seconds = math.ceil(10 * seconds - 1e-9) / 10
        dropped_s = max(DROPPED_S, DROPPED_LATENCIES * latency_s)
        quartet_s = 2 * arms * (seconds + dropped_s)
        least = math.ceil(measured_s / (2 * seconds) - 1e-9)
        worth = min(MAX_QUARTETS, round(math.sqrt(arms * startup_s / quartet_s)))
        return cls(seconds=seconds, dropped_s=dropped_s, quartets=max(MIN_QUARTETS, least, worth))

    @classmethod
    def whole(cls, load_s: float) -> Self:
        """Return the layout for an uninterrupted load, warm-up included."""
        return cls(seconds=load_s / 2, dropped_s=0.0, quartets=1)

    @property
    def loaded_s(self) -> float:
        """Expected time of an evaluation's slices."""
        return 2 * self.quartets * (self.seconds + self.dropped_s + SWITCH_S)
