"""Ground truth of a benchmark table, from evaluations held out of the replays.

Machine drift, which evaluations close in time share, is removed. A Gaussian process with the noise
from `estimates` then shrinks means towards neighbouring candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.lab.tables.estimates import estimates
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.metrics.objective import Objective
from tuner.sampling.arrays import Array
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates import gaussian_process
from tuner.sampling.surrogates.gaussian_process import NoisePrior
from tuner.values.configuration import Configuration
from tuner.values.histogram import LatencyHistogram

WINDOW_S = 45.0
MIN_KNOWN = 8
"""Number of evaluations from which a candidate's repeats count towards drift."""
SWEEPS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldoutSplit:
    """Each candidate's evaluations, split into those that replays draw and those held out."""

    drawn: Mapping[Configuration, tuple[RecordedEvaluation, ...]]
    held_out: Mapping[Configuration, tuple[RecordedEvaluation, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GroundTruth:
    """Feasible candidates (m,) with the logs of their minimised objectives."""

    candidates: tuple[Configuration, ...]
    log_mean: Array  # (m,)
    se: Array  # (m,)
    unsuccessful: frozenset[Configuration]

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


def split(table: BenchmarkTable) -> HoldoutSplit:
    """Split evaluations alternately, as the machine may change over hours."""
    every = table.by_cell
    return HoldoutSplit(
        drawn={cell: tuple(evaluations[0::2]) for cell, evaluations in every.items()},
        held_out={cell: tuple(evaluations[1::2]) for cell, evaluations in every.items()},
    )


def ground_truth(
    table: BenchmarkTable,
    held_out: Mapping[Configuration, Sequence[RecordedEvaluation]],
    objective: Objective,
    candidates: CandidateSet,
) -> GroundTruth:
    """Estimate the true value of every candidate."""
    values: dict[Configuration, list[float]] = {}
    lost: set[Configuration] = set()
    slower = drift(table, objective)
    for cell, evaluations in table.by_cell.items():
        failed = sum(
            table.minimised_value(evaluation, objective) is None for evaluation in evaluations
        )
        if 2 * failed >= len(evaluations):
            lost.add(cell)
            continue
        values[cell] = [
            value * math.exp(-slower[evaluation.number])
            for evaluation in held_out[cell]
            if (value := table.minimised_value(evaluation, objective)) is not None
        ]
    known = estimates(values)
    cells = tuple(known)
    if not cells:
        nothing = np.empty(0)
        return GroundTruth(
            candidates=(), log_mean=nothing, se=nothing, unsuccessful=frozenset(table.by_cell)
        )
    vectors = np.array([candidates.vector_of(cell) for cell in cells], dtype=float)
    means = np.array([known[cell].log_mean for cell in cells])
    if objective.name == "p99":  # of all requests pooled: never a mean of p99s
        together = (_pool_histograms(held_out[cell], slower) for cell in cells)
        means = np.log([one.quantile_ms(0.99) for one in together if one is not None])
    errors = np.array([known[cell].se for cell in cells])
    common = float(np.sqrt(np.mean(errors**2)))
    process = gaussian_process.fit(
        vectors,
        means,
        noise=NoisePrior(sd=common, spread=0.1),
        weights=(errors / common) ** 2,
    )
    smooth, sd = process.predict(vectors)
    return GroundTruth(candidates=cells, log_mean=smooth, se=sd, unsuccessful=frozenset(lost))


def _pool_histograms(
    evaluations: Sequence[RecordedEvaluation], slower: Mapping[int, float]
) -> LatencyHistogram | None:
    counted = [
        one.histogram.scale(math.exp(-slower[one.number]))
        for one in evaluations
        if one.histogram is not None and one.number in slower
    ]
    return LatencyHistogram.merge(counted) if counted else None


def drift(table: BenchmarkTable, objective: Objective) -> Mapping[int, float]:
    """Return each evaluation's log slowdown, by evaluation number; their median is 0.

    Repeats after the passes count only for candidates with `MIN_KNOWN` evaluations, as they were
    selected by value.
    """
    every = ((one, table.minimised_value(one, objective)) for one in table.evaluations)
    told = [(evaluation, value) for evaluation, value in every if value is not None]
    if not told:
        return {}
    evaluations = [evaluation for evaluation, _ in told]
    at_s = np.array([evaluation.started_at for evaluation in evaluations])
    logs = np.log([value for _, value in told])
    numbers = {cell: number for number, cell in enumerate({one.cell: None for one in evaluations})}
    cells = np.array([numbers[one.cell] for one in evaluations])
    counts = np.bincount(cells)
    tells = np.array([one.sweep < table.head.passes for one in evaluations])
    tells |= counts[cells] >= MIN_KNOWN
    near = [np.abs(at_s - one) <= WINDOW_S for one in at_s]
    near = [each & tells if np.any(each & tells) else each for each in near]
    slower = np.zeros(len(logs))
    for _ in range(SWEEPS):
        means = np.bincount(cells, weights=logs - slower) / counts
        left = logs - means[cells]
        slower = np.array([np.median(left[each]) for each in near])
        slower -= np.median(slower)
    return dict(zip((one.number for one in evaluations), slower.tolist(), strict=True))
