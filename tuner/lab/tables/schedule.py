"""Schedule of a recording: which candidate to evaluate next.

It is a pure function of the recorded evaluations, so a killed recording resumes exactly:

    pass 0, 1, 2        every candidate once, each time in a new order
    (again)             disturbed evaluations, at the end of their pass
    pass 3, 4, ...      the best, chosen anew each pass, until known well or at the maximum
    then                rivals, until ruled out or evaluated often enough, with an equal
                        number of well-known candidates, to detect drift

If rivals were not repeated, a few lucky evaluations would make the optimum.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tuner.lab.tables.estimates import CandidateEstimate, estimates
from tuner.values.configuration import Configuration

MAX_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRule:
    """Rules for repeated evaluations."""

    passes: int = 3
    """Number of passes over the grid."""
    best_share: float = 0.05
    best_se: float = 0.01
    most: int = 16
    """Maximum number of evaluations of each of the best candidates."""
    enough: int = 8
    rival_within: float = 0.1
    """Optimistic loss (two standard errors below the mean) up to which a candidate is a rival."""


@dataclasses.dataclass(frozen=True, slots=True)
class HasRecord:
    """Properties of an evaluation that the schedule needs."""

    sweep: int
    cell: Configuration
    value: float | None
    is_disturbed: bool = False


def due(
    candidates: Sequence[Configuration],
    recorded: Collection[HasRecord],
    thoroughness: RepeatRule,
    *,
    seed: int,
) -> tuple[int, list[Configuration]]:
    """Return the current pass and its remaining candidates; none if the recording is complete."""
    done = _done_keys(recorded)
    sweep = 0
    while True:
        wanted = candidates
        if sweep >= thoroughness.passes:
            known = _known_estimates(recorded, sweep)
            wanted = best(known, thoroughness) or rivals(
                known, thoroughness, np.random.default_rng([seed, sweep, 1])
            )
        left = [
            wanted[place]
            for place in np.random.default_rng([seed, sweep]).permutation(len(wanted))
            if (sweep, wanted[place]) not in done
        ]
        if left or not wanted:
            return sweep, left
        sweep += 1


def _done_keys(recorded: Collection[HasRecord]) -> set[tuple[int, Configuration]]:
    tries = collections.Counter((one.sweep, one.cell) for one in recorded)
    sound = {(one.sweep, one.cell) for one in recorded if not one.is_disturbed}
    return sound | {key for key, count in tries.items() if count >= MAX_TRIES}


def _known_estimates(
    recorded: Collection[HasRecord], sweep: int
) -> dict[Configuration, CandidateEstimate]:
    every: dict[Configuration, list[float | None]] = {}
    for one in recorded:
        if one.sweep < sweep and not one.is_disturbed:
            every.setdefault(one.cell, []).append(one.value)
    values = {cell: [one for one in each if one is not None] for cell, each in every.items()}
    known = estimates(
        {cell: each for cell, each in values.items() if 2 * len(each) > len(every[cell])}
    )
    return dict(sorted(known.items(), key=lambda item: item[1].log_mean))


def best(
    known: Mapping[Configuration, CandidateEstimate], thoroughness: RepeatRule
) -> list[Configuration]:
    """Return the best candidates that are not yet well known; `known` is sorted, best first."""
    chosen = list(known)[: math.ceil(thoroughness.best_share * len(known))]
    return [
        cell
        for cell in chosen
        if known[cell].se > thoroughness.best_se and known[cell].evaluations < thoroughness.most
    ]


def rivals(
    known: Mapping[Configuration, CandidateEstimate],
    thoroughness: RepeatRule,
    rng: np.random.Generator,
) -> list[Configuration]:
    """Return the rivals and as many well-known candidates; `known` is sorted, best first."""
    settled = [
        cell
        for cell, one in known.items()
        if one.evaluations >= thoroughness.enough or one.se <= thoroughness.best_se
    ]
    if not settled:
        return []
    limit = known[settled[0]].log_mean + thoroughness.rival_within
    found = [
        cell
        for cell, one in known.items()
        if cell not in settled and one.log_mean - 2 * one.se < limit
    ]
    beside = rng.permutation(len(settled))[: len(found)]
    return found + [settled[place] for place in sorted(beside)]


def expected_evaluations(candidates: int, thoroughness: RepeatRule) -> int:
    """Estimate a recording's number of evaluations, assuming half of the best's repeats."""
    more = max(0, (thoroughness.most - thoroughness.passes) // 2)
    return candidates * thoroughness.passes + math.ceil(thoroughness.best_share * candidates) * more
