"""Costs of a model of usual proportions, in seconds, of which only the size is known."""

from __future__ import annotations

import dataclasses
import math

ITEM_SHARE = 0.8
"""Share of the time of a batch of one item that each further item adds."""
THREAD_POWER = 0.8
"""Power of the thread count by which a batch is faster."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """Times of batches in a lone, unlimited replica."""

    item_s: float
    """Time of one item with one thread."""

    def service_s(self, size: float, threads: int) -> float:
        """Return the time of a batch of `size` items."""
        return self._alone_s(size) / math.pow(threads, THREAD_POWER)

    def cpu_s(self, size: float, threads: int) -> float:
        """Return the CPU time of a batch of `size` items."""
        return self._alone_s(size) * math.pow(threads, 1 - THREAD_POWER)

    def _alone_s(self, size: float) -> float:
        return self.item_s * (1 - ITEM_SHARE + ITEM_SHARE * size)
