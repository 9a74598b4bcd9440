"""Scores of replays: trials until the recommendation becomes good and stays so.

Without noise or repeats, the median number of trials in which random search finds one of K good
candidates among M is the smallest t with C(M - K, t) / C(M, t) < 1/2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from tuner.lab.tables.ground_truth import GroundTruth
from tuner.metrics.benchmark import rank
from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.verdict import VerdictOutcome

SHARES = (0.01, 0.03, 0.05, 0.10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedVerdict:
    """Verdict after a replayed search."""

    outcome: VerdictOutcome
    best: Configuration | None
    """Verified configuration, or the default if none was better."""
    seconds: float
    """Time at the end of the study, search included."""
    ratio: float | None = None
    """Ratio of the best to the default, or None if they were not compared."""
    interval: Interval | None = None
    pairs: int = 0
    true_ratio: float | None = None
    recommended: Configuration | None = None
    """Recommended configuration before the final selection."""
    leading: Configuration | None = None
    """Configuration with the best posterior mean at that time."""

    @property
    def covers(self) -> bool | None:
        """Whether the interval covers the true ratio, or None if unknown."""
        if self.interval is None or self.true_ratio is None:
            return None
        low, high = self.interval.low, self.interval.high
        return low is not None and high is not None and low <= self.true_ratio <= high

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        return {
            **dataclasses.asdict(self),
            **{
                name: None if one is None else dict(one)
                for name in ("best", "recommended", "leading")
                for one in [getattr(self, name)]
            },
            "covers": self.covers,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """Proposals and recommendations in one seed's run."""

    seed: int
    cells: tuple[Configuration, ...]
    """Proposed configurations."""
    recommended: tuple[Configuration | None, ...]
    seconds: tuple[float, ...] = ()
    sampler_s: float = 0.0
    own_s: tuple[float, ...] = ()
    """Cumulative sampler time; recommendations count if their fit also serves the next proposal."""
    lost: tuple[int, ...] = ()
    studies: tuple[ReplayedVerdict, ...] = ()
    """Verdicts of the studies that ended then."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        return {
            "seed": self.seed,
            "candidates": [dict(cell) for cell in self.cells],
            "recommended": [None if cell is None else dict(cell) for cell in self.recommended],
            "seconds": list(self.seconds),
            "sampler_s": self.sampler_s,
            "lost": list(self.lost),
            **({"verdict": self.studies[-1].as_json()} if self.studies else {}),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialsToTolerance:
    """Number of trials until the runs reach a tolerance."""

    share: float
    tolerance: float
    """The requested share, or twice the optimum's relative error if larger."""
    good_candidates: int
    median: float | None
    p90: float | None
    reached: float
    random_median: int


def trials_to(run: ReplayRun, good: AbstractSet[Configuration]) -> float:
    """Return the trial from which the recommendation stays good, or infinity."""
    first = math.inf
    for number in range(len(run.recommended), 0, -1):
        if run.recommended[number - 1] not in good:
            break
        first = number
    return first


def trials_to_tolerance(
    runs: Sequence[ReplayRun], truth: GroundTruth, share: float, *, candidates: int
) -> TrialsToTolerance:
    """Score all runs of a sampler; `candidates` includes failed ones."""
    good = truth.good(share)
    found = [trials_to(run, good) for run in runs]
    return TrialsToTolerance(
        share=share,
        tolerance=truth.tolerance(share),
        good_candidates=len(good),
        median=rank(found, 0.5),
        p90=rank(found, 0.9),
        reached=float(np.isfinite(found).mean()),
        random_median=random_median(candidates, len(good)),
    )


def random_median(candidates: int, good: int) -> int:
    """Return the number of trials in which half of all random searches find a good candidate."""
    if not good:
        return candidates + 1
    missed, every, trials = 1, 1, 0
    while 2 * missed >= every:
        missed *= max(0, candidates - good - trials)
        every *= candidates - trials
        trials += 1
    return trials
