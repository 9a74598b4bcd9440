"""What replays of a surface show: when the recommendation was good and stayed so, beside random search.

In: the recommendations after each trial of every run, and the truth. Out: figures per tolerance. Pure.

A run has reached x % with the first trial from which on everything that it recommends lies within the
tolerance. Random search, with perfect measurements and without repeats, has found one of K good cells
among M after the number of trials whose median is exact: the smallest t by which more than half of all
searches have met one, C(M - K, t) / C(M, t) < 1/2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from tuner.contest import rank
from tuner.replay.truth import Truth
from tuner.values import Configuration, Interval, VerdictOutcome

SHARES = (0.01, 0.03, 0.05, 0.10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedVerdict:
    """What a study would have said at the end of a replayed search."""

    outcome: VerdictOutcome
    best: Configuration | None
    """What was verified, or the default where nothing better was found."""
    ratio: float | None = None
    """Best over default of the objective; None where nothing was compared."""
    interval: Interval | None = None
    pairs: int = 0
    true_ratio: float | None = None
    """By held-out launches; None where they do not tell."""

    @property
    def covers(self) -> bool | None:
        """Whether the interval holds the truth; None where one of them is missing."""
        if self.interval is None or self.true_ratio is None:
            return None
        low, high = self.interval.low, self.interval.high
        return low is not None and high is not None and low <= self.true_ratio <= high

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **dataclasses.asdict(self),
            "best": None if self.best is None else dict(self.best),
            "covers": self.covers,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One replayed search."""

    seed: int
    cells: tuple[Configuration | None, ...]
    """Proposed, in order; None for a trial's time that went into the model's profile."""
    recommended: tuple[Configuration | None, ...]
    """After each trial; None while none worked."""
    seconds: tuple[float, ...] = ()
    """What the launches up to each trial took when they were recorded."""
    sampler_s: float = 0.0
    """What the sampler itself took, of all trials together."""
    own_s: tuple[float, ...] = ()
    """What it took up to each trial. Recommendations between them, which no study makes, count where their fit
    is the one from which the next proposal is made."""
    lost: tuple[int, ...] = ()
    """Numbers, from 0, of the trials that failed."""
    verdict: ReplayedVerdict | None = None
    """None where none was asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Trials until a tolerance, over the runs."""

    share: float
    tolerance: float
    """The larger of the share and two standard errors of the optimum."""
    good_cells: int
    median: float | None
    """None where half of the runs or more did not reach it."""
    p90: float | None
    reached: float
    """Share of the runs that did."""
    random_median: int


def trials_to(run: Run, good: AbstractSet[Configuration]) -> float:
    """Trials until the recommendation is good for the rest of the run; infinite where it is not at the end."""
    first = math.inf
    for number in range(len(run.recommended), 0, -1):
        if run.recommended[number - 1] not in good:
            break
        first = number
    return first


def reached(runs: Sequence[Run], truth: Truth, share: float, *, cells: int) -> Reached:
    """Over all runs.

    Args:
        runs: of one sampler.
        truth: of the surface.
        share: 0.03 is 3 %.
        cells: of the grid, those that fail included.
    """
    good = truth.good(share)
    found = [trials_to(run, good) for run in runs]
    return Reached(
        share=share,
        tolerance=truth.tolerance(share),
        good_cells=len(good),
        median=rank(found, 0.5),
        p90=rank(found, 0.9),
        reached=float(np.isfinite(found).mean()),
        random_median=random_median(cells, len(good)),
    )


def random_median(cells: int, good: int) -> int:
    """Trials after which random search without repeats has met one of the good cells in half of all searches."""
    if not good:
        return cells + 1
    missed, every, trials = 1, 1, 0
    while 2 * missed >= every:
        missed *= max(0, cells - good - trials)
        every *= cells - trials
        trials += 1
    return trials


def regrets(runs: Sequence[Run], truth: Truth) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(runs, trials): how far the recommendation after each trial lies above the optimum."""
    return np.array(
        [
            [math.inf if cell is None else truth.regret(cell) for cell in run.recommended]
            for run in runs
        ]
    )
