"""Evaluator that draws from a benchmark table, with optional perturbations.

A candidate's evaluations are drawn without replacement; once all are used, they are drawn again.

    noise      every evaluation is slower by its own log-normal factor of median 1
    null       all candidates draw with replacement from one's evaluations, so all are equal
    resampled  evaluations are the ground truth plus residuals from the table
    raced      an evaluation ends with the block at which it loses to the best so far
    blocks     evaluations keep only their first blocks
    walls      candidates beyond a plane through two knobs run out of memory
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tuner.evaluation.evaluation import Evaluation
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.load_generator.plan import Race
from tuner.measurement.host import log_cpu_per_request
from tuner.metrics.objective import Objective
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates import gaussian_process
from tuner.sampling.surrogates.gaussian_process import NoisePrior
from tuner.values.configuration import Configuration
from tuner.values.histogram import LatencyHistogram
from tuner.values.trial import Outcome

OOM_SHARE = 0.3
CPU_NOISE = NoisePrior(sd=0.1, spread=0.3)
PLANES = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Perturbations:
    """Perturbations of drawn evaluations."""

    noise_sd: float = 0.0
    is_null: bool = False
    is_resampled: bool = False
    injects_oom: bool = False
    is_raced: bool = False
    max_blocks: int | None = None


@dataclasses.dataclass(slots=True, eq=False)
class TableEvaluator:
    """Evaluator that returns recorded evaluations."""

    table: BenchmarkTable
    drawn: Mapping[Configuration, Sequence[RecordedEvaluation]]
    rng: np.random.Generator
    noise_sd: float = 0.0
    with_oom: frozenset[Configuration] = frozenset()
    resampled: Resampling | None = None
    puts_back: bool = False
    max_blocks: int | None = None
    seconds: float = 0.0
    _waiting: dict[Configuration, list[RecordedEvaluation]] = dataclasses.field(
        default_factory=dict
    )

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Draw a candidate's next evaluation, up to the block that loses the race."""
        recorded = self._next(configuration)
        factor, effort = 1.0, 1.0
        if self.noise_sd:
            factor = math.exp(self.rng.normal(0.0, self.noise_sd))
        if self.resampled is not None:
            other, effort = self.resampled.factors(self.table, recorded, self.rng)
            factor *= other
        if configuration in self.with_oom:
            recorded = dataclasses.replace(
                recorded,
                outcome=Outcome(
                    status="infeasible", cause="oom", reason="out of memory, by the wrapper"
                ),
                blocks=(),
                histogram=None,
                loaded_s=0.0,
            )
        if factor != 1.0:
            recorded = scale_latency(recorded, factor, effort)
        whole = recorded
        if self.max_blocks is not None:
            recorded = shorten(recorded, self.max_blocks)
        if race is not None:
            recorded = stop_by_race(recorded, race)
        self.seconds += recorded.startup_s + recorded.loaded_s
        measurement = self.table.measurement_of(recorded)
        if measurement is not None and race is not None:
            is_short = len(recorded.blocks) < min(len(whole.blocks), self.max_blocks or math.inf)
            measurement = dataclasses.replace(measurement, ended_early=is_short)
        return Evaluation(
            configuration=configuration,
            outcome=recorded.outcome,
            measurement=measurement,
            records=None,
            startup_s=recorded.startup_s,
            loaded_s=recorded.loaded_s,
            started_at=recorded.started_at,
        )

    def evaluate_on_new_server(self, configuration: Configuration) -> Evaluation:
        """Draw as `evaluate` does, since recorded evaluations need no server."""
        return self.evaluate(configuration)

    def _next(self, configuration: Configuration) -> RecordedEvaluation:
        every = self.drawn[configuration]
        if self.puts_back:
            return every[int(self.rng.integers(len(every)))]
        waiting = self._waiting.get(configuration)
        if not waiting:
            waiting = [every[place] for place in self.rng.permutation(len(every))]
            self._waiting[configuration] = waiting
        return waiting.pop()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resampling:
    """True means, with the residuals for resampled evaluations."""

    means: Mapping[Configuration, float]
    """Log of each feasible candidate's minimised objective."""
    log_cpu_per_request: Mapping[Configuration, float]
    residuals: NDArray[np.float64]  # (k, 2)
    objective: Objective

    @classmethod
    def of(
        cls,
        table: BenchmarkTable,
        means: Mapping[Configuration, float],
        objective: Objective,
        candidates: CandidateSet,
    ) -> Self:
        """Build from candidates with two or more evaluations, without bias in the spread."""
        found: list[NDArray[np.float64]] = []
        log_cpu_per_request: dict[Configuration, tuple[float, int]] = {}
        for cell, evaluations in table.by_cell.items():
            rows = [
                (math.log(value), math.nan if effort is None else effort)
                for evaluation in evaluations
                if (value := table.minimised_value(evaluation, objective)) is not None
                for effort in (log_cpu_per_request_of(table, evaluation),)
            ]
            if not rows:
                continue
            logs = np.array(rows)
            if np.isfinite(logs[:, 1]).all():
                log_cpu_per_request[cell] = float(logs[:, 1].mean()), len(logs)
            if len(rows) > 1:
                found.append((logs - logs.mean(axis=0)) * math.sqrt(len(logs) / (len(logs) - 1)))
        residuals = np.concatenate(found)
        # Centre the residuals, so that the geometric mean of the factors is 1.
        return cls(
            means=means,
            log_cpu_per_request=_smooth(log_cpu_per_request, candidates),
            residuals=residuals - _known_means(residuals),
            objective=objective,
        )

    def factors(
        self, table: BenchmarkTable, evaluation: RecordedEvaluation, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Draw factors for an evaluation's latency and its CPU time per request."""
        value = table.minimised_value(evaluation, self.objective)
        if value is None or evaluation.cell not in self.means:
            return 1.0, 1.0
        residual, more = map(float, self.residuals[int(rng.integers(len(self.residuals)))])
        slower = math.exp(self.means[evaluation.cell] + residual - math.log(value))
        own, usual = (
            log_cpu_per_request_of(table, evaluation),
            self.log_cpu_per_request.get(evaluation.cell),
        )
        if own is None or usual is None or not math.isfinite(more):
            return slower, 1.0
        return slower, math.exp(usual + more - own)


def _known_means(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.isfinite(residuals)
    total = np.where(known, residuals, 0.0).sum(axis=0)
    return np.asarray(total / np.maximum(known.sum(axis=0), 1))


def _smooth(
    log_cpu_per_request: Mapping[Configuration, tuple[float, int]], candidates: CandidateSet
) -> dict[Configuration, float]:
    places = {
        cell: place
        for cell in log_cpu_per_request
        if (place := candidates.index_of(cell)) is not None
    }
    cells = list(places)
    if len(cells) < 2:
        return {cell: mean for cell, (mean, _) in log_cpu_per_request.items()}
    counts = np.array([log_cpu_per_request[cell][1] for cell in cells], dtype=float)
    process = gaussian_process.fit(
        candidates.vectors[list(places.values())],
        np.array([log_cpu_per_request[cell][0] for cell in cells]),
        noise=CPU_NOISE,
        weights=1 / counts,
    )
    mean, _ = process.predict(process.vectors)
    return dict(zip(cells, mean.tolist(), strict=True))


def log_cpu_per_request_of(table: BenchmarkTable, evaluation: RecordedEvaluation) -> float | None:
    """Return an evaluation's log CPU time per request, or None if unknown."""
    measured = table.measurement_of(evaluation)
    return None if measured is None else log_cpu_per_request(measured)


def shorten(evaluation: RecordedEvaluation, blocks: int) -> RecordedEvaluation:
    """Return the evaluation with only its first `blocks` blocks, but the whole histogram."""
    kept = evaluation.blocks[:blocks]
    if len(kept) == len(evaluation.blocks):
        return evaluation
    left_s = sum(block.seconds for block in evaluation.blocks[blocks:])
    whole_s = sum(block.seconds for block in evaluation.blocks)
    noise = evaluation.noise
    spent = {
        "server_cpu_s": _part(noise.server_cpu_s, 1 - left_s / evaluation.loaded_s),
        "client_cpu_s": _part(noise.client_cpu_s, 1 - left_s / whole_s),  # none of the warm-up
    }
    return dataclasses.replace(
        evaluation,
        blocks=kept,
        loaded_s=evaluation.loaded_s - left_s,
        errors=0,
        noise=dataclasses.replace(noise, **spent),
    )


def _part(seconds: float | None, share: float) -> float | None:
    return None if seconds is None else seconds * share


def stop_by_race(evaluation: RecordedEvaluation, race: Race) -> RecordedEvaluation:
    """Return the evaluation up to the first look at which its mean exceeds the limit."""
    requests, sums = 0, 0.0
    for number, block in enumerate(evaluation.blocks):
        if number >= min(len(race.limits_ms), len(evaluation.blocks) - 1):
            break
        requests += block.requests
        sums += block.requests * block.mean_ms
        if sums / requests > race.limits_ms[number]:
            return shorten(evaluation, number + 1)
    return evaluation


def scale_latency(
    evaluation: RecordedEvaluation, factor: float, effort: float = 1.0
) -> RecordedEvaluation:
    """Multiply an evaluation's latencies by `factor`, and its CPU time per request by `effort`."""
    blocks = tuple(
        dataclasses.replace(
            block,
            mean_ms=block.mean_ms * factor,
            p50_ms=block.p50_ms * factor,
            p99_ms=block.p99_ms * factor,
            spread_ms=None if block.spread_ms is None else block.spread_ms * factor,
            throughput_per_s=block.throughput_per_s / factor,
            requests=max(1, round(block.requests / factor)),
        )
        for block in evaluation.blocks
    )
    histogram: LatencyHistogram | None = evaluation.histogram
    noise, share = evaluation.noise, effort / factor
    spent = {
        "server_cpu_s": _part(noise.server_cpu_s, share),
        "client_cpu_s": _part(noise.client_cpu_s, share),
    }
    return dataclasses.replace(
        evaluation,
        blocks=blocks,
        noise=dataclasses.replace(noise, **spent),
        histogram=None if histogram is None else histogram.scale(factor),
    )


def null(
    drawn: Mapping[Configuration, Sequence[RecordedEvaluation]],
) -> Mapping[Configuration, Sequence[RecordedEvaluation]]:
    """Give every candidate the evaluations of the candidate with the most successes."""
    worked = {
        cell: [evaluation for evaluation in evaluations if evaluation.histogram is not None]
        for cell, evaluations in drawn.items()
    }
    chosen = max(worked, key=lambda cell: len(worked[cell]))
    return dict.fromkeys(drawn, worked[chosen])


def with_oom(
    candidates: CandidateSet, kept: Sequence[Configuration], rng: np.random.Generator
) -> frozenset[Configuration]:
    """Choose the candidates that run out of memory: those beyond a plane through two axes.

    Of `PLANES` random planes that spare `kept`, it is the one that hits most candidates.
    """
    places = [place for cell in kept if (place := candidates.index_of(cell)) is not None]
    widest = np.zeros(len(candidates.configurations), dtype=bool)
    for _ in range(PLANES):
        width = candidates.design_width
        weights: NDArray[np.float64] = np.zeros(width)
        axes = rng.permutation(width)[:2]
        weights[axes] = rng.choice([-1.0, 1.0], len(axes)) * rng.uniform(0.5, 1.0, len(axes))
        heights = candidates.vectors[:, :width] @ weights
        limit = max(float(np.quantile(heights, 1 - OOM_SHARE)), *heights[places])
        behind = heights > limit
        if behind.sum() > widest.sum():
            widest = behind
    return frozenset(candidates.configurations[int(place)] for place in np.flatnonzero(widest))
