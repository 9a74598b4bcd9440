"""Whether the answers of a load have settled, from the round trips so far.

In: round trips in order of completion. Out: whether at most half of them belong to a beginning that is to be
left out. That beginning is found by the rule of the least marginal standard error (MSER-5: White, "An
Effective Truncation Heuristic for Bias Reduction in Simulation Output", Simulation 69:323, 1997; five answers
are one batch, more where there are many). Pure; it is imported by the client's process, and imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

BATCH = 5
"""Answers whose mean is one value."""
LEAST_BATCHES, MOST_BATCHES = 8, 40
"""Under the least nothing has settled that anybody could see; above the most, batches are made longer."""


def has_settled(took: Sequence[float]) -> bool:
    """Whether what was seen is steady from its first half on.

    Args:
        took: round trips in order of completion, in any unit.
    """
    size = max(BATCH, len(took) // MOST_BATCHES)
    count = len(took) // size
    if count < LEAST_BATCHES:
        return False
    means = [sum(took[size * place : size * (place + 1)]) / size for place in range(count)]
    return beginning(means) <= count // 2


def beginning(means: Sequence[float]) -> int:
    """How many of the first values are left out so that the mean of the others has the least standard error.

    At most three quarters of them: the error of few values is itself hardly known.
    """
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
