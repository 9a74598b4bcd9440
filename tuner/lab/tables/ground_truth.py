"""Ground truth of a benchmark table: every candidate's value, apart from the machine.

The machine's speed, which evaluations close in time share, is taken out (`effects`). A Gaussian
process with the errors that are left then shrinks means towards neighbouring candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from tuner.lab.tables import effects
from tuner.lab.tables.table import BenchmarkTable
from tuner.metrics.objective import Objective
from tuner.sampling.arrays import Array
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates import gaussian_process
from tuner.sampling.surrogates.gaussian_process import NoisePrior
from tuner.values.configuration import Configuration

UNSCALED = frozenset({"goodput"})
"""Objectives that are no multiple of latencies, whose means are left as they are."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GroundTruth:
    """Feasible candidates (m,) with the logs of their minimised objectives."""

    candidates: tuple[Configuration, ...]
    log_mean: Array  # (m,)
    se: Array  # (m,)
    unsuccessful: frozenset[Configuration]
    corrections: Mapping[Configuration, float] = dataclasses.field(default_factory=dict)
    """Logarithm of each candidate's value over the mean of its evaluations, apart from the machine."""
    left: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Logarithm of each evaluation's value over that mean, by its number."""

    @property
    def best(self) -> int:
        """Index of the best candidate."""
        return int(np.argmin(self.log_mean))

    @property
    def optimum(self) -> float:
        """Best value, in the minimised objective's unit."""
        return math.exp(float(self.log_mean[self.best]))

    @property
    def optimum_se(self) -> float:
        """Relative standard error of the optimum."""
        return float(self.se[self.best])

    @property
    def worst_regret(self) -> float:
        """Loss of the worst feasible candidate, relative to the optimum."""
        return math.expm1(float(np.max(self.log_mean) - np.min(self.log_mean)))

    def tolerance(self, share: float) -> float:
        """Return `share`, or twice the optimum's error if larger."""
        return max(share, 2 * self.optimum_se)

    def good(self, share: float) -> frozenset[Configuration]:
        """Return the candidates within the tolerance of the optimum."""
        limit = float(self.log_mean[self.best]) + math.log1p(self.tolerance(share))
        return frozenset(
            cell for cell, mean in zip(self.candidates, self.log_mean, strict=True) if mean <= limit
        )

    def regret(self, candidate: Configuration) -> float:
        """Return a candidate's loss relative to the optimum (0.02 is 2 %); infinite if it fails."""
        place = self._places.get(candidate)
        if place is None:
            return math.inf
        return math.expm1(float(self.log_mean[place] - self.log_mean[self.best]))

    def ratio(self, one: Configuration, other: Configuration) -> float | None:
        """Return the ratio of two candidates' minimised values, or None if either fails."""
        first, second = self._places.get(one), self._places.get(other)
        if first is None or second is None:
            return None
        return math.exp(float(self.log_mean[first] - self.log_mean[second]))

    @functools.cached_property
    def _places(self) -> Mapping[Configuration, int]:
        return {cell: place for place, cell in enumerate(self.candidates)}


def ground_truth(
    table: BenchmarkTable, objective: Objective, candidates: CandidateSet
) -> GroundTruth:
    """Estimate the true value of every candidate."""
    lost = frozenset(
        cell
        for cell, every in table.by_cell.items()
        if 2 * sum(table.minimised_value(one, objective) is None for one in every) >= len(every)
    )
    told = [
        (one, value)
        for cell, every in table.by_cell.items()
        if cell not in lost
        for one in every
        if (value := table.minimised_value(one, objective)) is not None
    ]
    if not told:
        nothing = np.empty(0)
        return GroundTruth(candidates=(), log_mean=nothing, se=nothing, unsuccessful=lost)
    told.sort(key=lambda pair: pair[0].started_at)
    numbers = {cell: number for number, cell in enumerate({one.cell: None for one, _ in told})}
    cells = tuple(numbers)
    found = effects.fit(
        np.array([numbers[one.cell] for one, _ in told]),
        np.array([one.started_at for one, _ in told]),
        np.log([value for _, value in told]),
    )
    smooth, sd = found.mean, found.se
    if objective.name not in UNSCALED:
        common = float(np.sqrt(np.mean(found.se**2)))
        process = gaussian_process.fit(
            np.array([candidates.vector_of(cell) for cell in cells], dtype=float),
            found.mean,
            noise=NoisePrior(sd=common, spread=0.1),
            weights=(found.se / common) ** 2,
        )
        smooth, sd = process.predict(process.vectors)
    return GroundTruth(
        candidates=cells,
        log_mean=smooth,
        se=sd,
        unsuccessful=lost,
        corrections=dict(zip(cells, (smooth - found.mean).tolist(), strict=True)),
        left={one.number: float(left) for (one, _), left in zip(told, found.left, strict=True)},
    )
