"""What a comparison by pairs of launches can show: the smallest gain, and how many pairs fit.

In: the noise of one trial, on the log scale. Out: gains as shares (0.04: 4 % less) that a two-sided
paired t-test at 5 % finds with a probability of 80 %, from the noncentral t distribution. Pure.
"""

from __future__ import annotations

import math

from scipy import special

ALPHA = 0.05
POWER = 0.8


def pairs_within(time_s: float, *, start_s: float, measured_s: float) -> int:
    """Pairs of launches, one of each configuration, that fit into a time."""
    return math.floor(time_s / (2 * (start_s + measured_s)))


def smallest_gain(trial_sd: float, pairs: int) -> float | None:
    """The smallest gain that so many pairs are likely to show; None under two pairs.

    Args:
        trial_sd: standard deviation of one launch's log mean (`NoiseComponents.trial_sd`).
        pairs: launches of each of the two configurations.
    """
    if pairs < 2:
        return None
    return gain_from_differences(math.sqrt(2) * trial_sd, pairs)


def gain_from_differences(difference_sd: float, pairs: int) -> float:
    """The same, from the standard deviation of the pairs' log differences; at least two pairs."""
    shift = _needed_shift(pairs - 1) * difference_sd / math.sqrt(pairs)
    return 1 - math.exp(-shift)


def _needed_shift(degrees: int) -> float:
    """Noncentrality of t, in standard errors, at which the test has its power; by bisection."""
    critical = float(special.stdtrit(degrees, 1 - ALPHA / 2))
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        missed = float(special.nctdtr(degrees, middle, critical))
        missed -= float(special.nctdtr(degrees, middle, -critical))
        if 1 - missed < POWER:
            low = middle
        else:
            high = middle
    return high
