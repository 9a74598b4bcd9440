"""Which loads others of the machine have disturbed: other processes, or the hypervisor's other machines.

In: the host's noise of one load after the other. Out: whether others took more of the machine than is usual
here, and whether there is time to measure that again. A steady neighbour is part of the machine; one that
comes and goes makes one configuration look slow, and the next one fast. Pure.
"""

from __future__ import annotations

import statistics

from tuner.values import HostNoise

MOST_MORE = 0.05
"""Share of the machine's CPU time above the usual from which a load tells of the others: about what the
configurations of a comparison differ by."""
LEAST_S = 0.05
"""CPU time that is not told from none: procfs counts in ticks of 10 ms, one error for each process."""
LEAST_KNOWN = 3
"""Loads from which their median is what is usual; before them it is the least."""
KEPT = 50
"""Loads by which it is known: what is usual changes with the hour."""
MOST_REPEATED = 0.25
"""Share of the time of all loads that measuring again may take: a machine that is never quiet has no better
moment to offer."""
CREDIT_S = 1.0
"""Time for it that there is from the beginning."""


class Others:
    """What others of the machine usually take of it."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._shares: dict[tuple[bool, bool], list[float]] = {}
        """By what of it is known: of a server elsewhere nobody can tell what is foreign."""
        self._left_s = CREDIT_S
        """Time for measuring again."""

    def has_disturbed(self, noise: HostNoise, *, loaded_s: float) -> bool:
        """Take note of a load, and say whether others took more than usual meanwhile; False where nobody knows.

        Args:
            noise: of the load.
            loaded_s: warm-up and measured time.
        """
        told = [part for part in (noise.foreign_cpu_s, noise.steal_s) if part is not None]
        self._left_s += MOST_REPEATED * loaded_s
        if not told or loaded_s <= 0:
            return False
        whole_s = self._cores * loaded_s
        taken_s = sum(told)
        kind = noise.foreign_cpu_s is None, noise.steal_s is None
        shares = [*self._shares.get(kind, [])[1 - KEPT :], taken_s / whole_s]
        self._shares[kind] = shares
        usual = statistics.median(shares) if len(shares) >= LEAST_KNOWN else min(shares)
        return taken_s - usual * whole_s > max(LEAST_S, MOST_MORE * whole_s)

    def may_repeat(self, loaded_s: float) -> bool:
        """Whether a load may be driven again; takes its time where it may."""
        if loaded_s > self._left_s:
            return False
        self._left_s -= loaded_s
        return True
