"""Test whether latencies have settled: the initial part to drop is at most half of them.

That part minimises the marginal standard error (MSER-5: White, "An Effective Truncation Heuristic
for Bias Reduction in Simulation Output", Simulation 69:323, 1997). Imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

BATCH = 5
MIN_BATCHES, MAX_BATCHES = 8, 40
LOOK_S = 0.1


class Settling:
    """Wait at the end of a warm-up until latencies have settled."""

    def __init__(self, start_s: float, max_s: float) -> None:
        """Prepare the wait.

        Args:
            start_s: end of the least warm-up.
            max_s: longest further wait; 0 waits for nothing.
        """
        self._start_s, self._longest_s = start_s, max_s
        self._look_s = 0.0
        self._has_settled = False

    def is_waiting(
        self, now_s: float, intended_s: Sequence[float], finished_s: Sequence[float]
    ) -> bool:
        """Whether the warm-up goes on, by all requests so far in order of completion."""
        if not self._longest_s:
            return False
        if not self._start_s <= now_s < self._start_s + self._longest_s:
            return now_s < self._start_s
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            took_s = [end - begin for end, begin in zip(finished_s, intended_s, strict=True)]
            self._has_settled = has_settled(took_s)
        return not self._has_settled


def has_settled(took: Sequence[float]) -> bool:
    """Whether latencies, in order of completion, are steady after their first half."""
    size = max(BATCH, len(took) // MAX_BATCHES)
    count = len(took) // size
    if count < MIN_BATCHES:
        return False
    means = [sum(took[size * place : size * (place + 1)]) / size for place in range(count)]
    return beginning(means) <= count // 2


def beginning(means: Sequence[float]) -> int:
    """How many values, at most three quarters, to drop for the least standard error of the mean."""
    best, least = 0, float("inf")
    total = squares = 0.0
    for place in range(len(means) - 1, -1, -1):
        total += means[place]
        squares += means[place] ** 2
        kept = len(means) - place
        if 4 * kept < len(means) or kept < 2:
            continue
        error = max(0.0, squares - total**2 / kept) / kept**2
        if error <= least:
            best, least = place, error
    return best
