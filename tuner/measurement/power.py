"""Smallest gain that a paired comparison of evaluations can detect.

Gains are shares (0.04 means 4 % less) that a two-sided paired t-test at 5 % detects with 80 %
probability (noncentral t). Noise is on the log scale.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.measurement.drift_model import DriftModel
from tuner.measurement.time_slices import SWITCH_S, TimeSlices

ALPHA = 0.05
POWER = 0.8
BIN_S = 0.1
"""Length of a time cell, in which machine speed hardly changes."""


def pairs_within(time_s: float, *, start_s: float, measured_s: float) -> int:
    """Return how many pairs of evaluations fit into a time."""
    return math.floor(time_s / (2 * (start_s + measured_s)))


def smallest_gain(trial_sd: float, pairs: int) -> float | None:
    """Return the smallest detectable gain, or None for fewer than two pairs.

    `trial_sd` is the sd of an evaluation's log mean.
    """
    if pairs < 2:
        return None
    return gain_from_differences(math.sqrt(2) * trial_sd, pairs)


def gain_from_differences(difference_sd: float, pairs: int) -> float:
    """Return the smallest detectable gain, given the sd of two or more pairs' log differences."""
    shift = _needed_shift(pairs - 1) * difference_sd / math.sqrt(pairs)
    return 1 - math.exp(-shift)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundLayout:
    """Timing of the rounds in which two configurations are compared."""

    number: int
    slices: TimeSlices
    startup_s: float
    is_interleaved: bool

    def make_schedule(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the middles (n,) of cells, with their signed weights (n,) in the difference."""
        at_s, weights, now_s = [], [], 0.0
        parts = 2 * self.slices.quartets
        cells = max(1, round(self.slices.seconds / BIN_S))
        weight = 1 / (self.number * parts * cells)
        for number in range(self.number):
            first = 1 if number % 2 == 0 else -1
            if self.is_interleaved:
                now_s += 2 * self.startup_s
                sides = [first * (1 if turn % 4 in {0, 3} else -1) for turn in range(2 * parts)]
            else:
                sides = [first] * parts + [-first] * parts
            for turn, side in enumerate(sides):
                if not self.is_interleaved and turn % parts == 0:
                    now_s += self.startup_s
                now_s += self.slices.dropped_s
                at_s.append(now_s + self.slices.seconds * (np.arange(cells) + 0.5) / cells)
                weights.append(np.full(cells, side * weight))
                now_s += self.slices.seconds + (SWITCH_S if self.is_interleaved else 0.0)
        return np.concatenate(at_s), np.concatenate(weights)


def error_of(course: DriftModel, rounds: RoundLayout, *, block_s: float) -> float:
    """Return the standard error of a log ratio measured in one or more rounds."""
    at_s, weights = rounds.make_schedule()
    common = weights @ course.covariance(at_s[:, None] - at_s) @ weights
    cell_s = 2 * rounds.slices.quartets * rounds.slices.seconds * rounds.number / (len(at_s) / 2)
    own = course.block_sd**2 * block_s / cell_s * float(weights @ weights)
    return math.sqrt(common + own + 2 * course.evaluation_sd**2 / rounds.number)


def smallest_gain_of(course: DriftModel, rounds: RoundLayout, *, block_s: float) -> float | None:
    """Return the smallest detectable gain, or None for fewer than two rounds."""
    if rounds.number < 2:
        return None
    shift = _needed_shift(rounds.number - 1) * error_of(course, rounds, block_s=block_s)
    return 1 - math.exp(-shift)


def _needed_shift(degrees: int) -> float:
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
