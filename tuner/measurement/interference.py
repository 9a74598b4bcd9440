"""Detection of loads disturbed by neighbours: processes or virtual machines.

A steady neighbour is part of the machine; an intermittent one distorts comparisons.
"""

from __future__ import annotations

import statistics

from tuner.values.measurement import HostNoise

MAX_MORE = 0.05
"""Share of CPU time above the usual from which a load counts as disturbed."""
MIN_S = 0.05
"""CPU time indistinguishable from none, as procfs ticks are 10 ms."""
MIN_KNOWN = 3
"""Number of loads from which the median, instead of the minimum, is the usual share."""
RETAINED = 50
MAX_REPEATED = 0.25
CREDIT_S = 1.0


class InterferenceDetector:
    """Tracker of the machine's share that neighbours usually take."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._shares: dict[tuple[bool, bool], list[float]] = {}
        """Recent shares, keyed by which values are unknown."""
        self._left_s = CREDIT_S

    def is_disturbed(self, noise: HostNoise, *, loaded_s: float) -> bool:
        """Record a load, and return whether neighbours took more than usual.

        False if that is unknown. `loaded_s` includes the warm-up.
        """
        told = [part for part in (noise.neighbour_cpu_s, noise.steal_s) if part is not None]
        self._left_s += MAX_REPEATED * loaded_s
        if not told or loaded_s <= 0:
            return False
        whole_s = self._cores * loaded_s
        taken_s = sum(told)
        kind = noise.neighbour_cpu_s is None, noise.steal_s is None
        shares = [*self._shares.get(kind, [])[1 - RETAINED :], taken_s / whole_s]
        self._shares[kind] = shares
        usual = statistics.median(shares) if len(shares) >= MIN_KNOWN else min(shares)
        return taken_s - usual * whole_s > max(MIN_S, MAX_MORE * whole_s)

    def can_repeat(self, loaded_s: float) -> bool:
        """Whether the budget allows a load to be repeated; if so, its time is spent."""
        if loaded_s > self._left_s:
            return False
        self._left_s -= loaded_s
        return True
