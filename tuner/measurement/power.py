"""What a comparison by pairs of launches can show: the smallest gain, and how many pairs fit.

In: the noise of one trial, or the course of a machine and how rounds are laid out in it, on the log scale. Out:
gains as shares (0.04: 4 % less) that a two-sided paired t-test at 5 % finds with a probability of 80 %, from the
noncentral t distribution. Pure.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.measurement.moments import Course
from tuner.slices import SWITCH_S, Slices

ALPHA = 0.05
POWER = 0.8
CELL_S = 0.1
"""Into which what is measured is cut: the machine's speed hardly moves within it."""


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How a comparison of two configurations is laid out in time."""

    number: int
    slices: Slices
    """Of each launch; where launches are not side by side, their parts follow one another."""
    launch_s: float
    """Of each launch, before its load."""
    is_side_by_side: bool

    def lay_out(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Middles of what is measured, cut into tenths of a second (n,), and the weight of each in the
        difference of the two configurations (n,): positive for the one, negative for the other.
        """
        at_s, weights, now_s = [], [], 0.0
        parts = 2 * self.slices.quartets
        cells = max(1, round(self.slices.seconds / CELL_S))
        weight = 1 / (self.number * parts * cells)
        for number in range(self.number):
            first = 1 if number % 2 == 0 else -1
            if self.is_side_by_side:
                now_s += 2 * self.launch_s
                sides = [first * (1 if turn % 4 in {0, 3} else -1) for turn in range(2 * parts)]
            else:
                sides = [first] * parts + [-first] * parts
            for turn, side in enumerate(sides):
                if not self.is_side_by_side and turn % parts == 0:
                    now_s += self.launch_s
                now_s += self.slices.dropped_s
                at_s.append(now_s + self.slices.seconds * (np.arange(cells) + 0.5) / cells)
                weights.append(np.full(cells, side * weight))
                now_s += self.slices.seconds + (SWITCH_S if self.is_side_by_side else 0.0)
        return np.concatenate(at_s), np.concatenate(weights)


def error_of(course: Course, rounds: Rounds, *, block_s: float) -> float:
    """Standard error of the logarithm of a ratio that was measured in rounds.

    Args:
        course: of the machine.
        rounds: one at least.
        block_s: length of the blocks that the course is of; the variance of blocks falls with their length.
    """
    at_s, weights = rounds.lay_out()
    common = weights @ course.covariance(at_s[:, None] - at_s) @ weights
    cell_s = 2 * rounds.slices.quartets * rounds.slices.seconds * rounds.number / (len(at_s) / 2)
    own = course.block_sd**2 * block_s / cell_s * float(weights @ weights)
    return math.sqrt(common + own + 2 * course.launch_sd**2 / rounds.number)


def smallest_gain_of(course: Course, rounds: Rounds, *, block_s: float) -> float | None:
    """The smallest gain that rounds are likely to show; None under two of them; arguments as for `error_of`."""
    if rounds.number < 2:
        return None
    shift = _needed_shift(rounds.number - 1) * error_of(course, rounds, block_s=block_s)
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
