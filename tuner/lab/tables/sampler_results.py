"""A sampler's results on a benchmark table: regret, and time to tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner.lab.tables import scoring
from tuner.lab.tables.ground_truth import GroundTruth
from tuner.lab.tables.scoring import ReplayRun
from tuner.metrics.benchmark import Quartiles, SamplerResult, TimeToTolerance
from tuner.sampling.arrays import Array
from tuner.values.configuration import Configuration

SHARES = (0.10, 0.05, 0.03)


def sampler_result(
    sampler: str,
    runs: Sequence[ReplayRun],
    truth: GroundTruth,
    *,
    default: Configuration,
) -> SamplerResult:
    """Summarise runs of equal length."""
    regrets = finite_regrets(runs, truth, default)
    seconds = np.array([elapsed_s(run) for run in runs])
    trials = len(runs[0].cells)
    return SamplerResult(
        sampler=sampler,
        regrets=_round_rows(regrets),
        seconds=_round_rows(seconds),
        regret=quartiles(regrets),
        within=tuple(time_to_tolerance(runs, seconds, truth, share) for share in SHARES),
        failures=float(np.mean([len(run.lost) for run in runs])),
        sampler_ms=1e3 * float(np.mean([run.own_s[-1] for run in runs])) / trials,
    )


def finite_regrets(runs: Sequence[ReplayRun], truth: GroundTruth, default: Configuration) -> Array:
    """Return finite regrets (runs, trials) of runs of equal length.

    Without a recommendation, the default's regret counts; if the recommendation fails, the worst
    feasible candidate's.
    """
    return np.array([run_regrets(run, truth, default) for run in runs])


def run_regrets(run: ReplayRun, truth: GroundTruth, default: Configuration) -> list[float]:
    """Return the finite regret after each trial of a run, as `finite_regrets` does."""
    worst = truth.worst_regret
    return [min(worst, truth.regret(default if one is None else one)) for one in run.recommended]


def elapsed_s(run: ReplayRun) -> list[float]:
    """Return the time at the end of each trial, including the sampler's own time."""
    return [spent_s + own_s for spent_s, own_s in zip(run.seconds, run.own_s, strict=True)]


def quartiles(values: Array) -> Quartiles:
    """Return the quartiles of each column of `values` (runs, trials)."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    return Quartiles(
        low=_row(low), median=_row(median), high=_row(high), mean=_row(np.mean(values, axis=0))
    )


def time_to_tolerance(
    runs: Sequence[ReplayRun], seconds: Array, truth: GroundTruth, share: float
) -> TimeToTolerance:
    """Return how soon the runs come within a share of the optimum and stay there."""
    good = truth.good(share)
    trials = [scoring.trials_to(run, good) for run in runs]
    took = [
        float(row[int(count) - 1]) if math.isfinite(count) else math.inf
        for row, count in zip(seconds, trials, strict=True)
    ]
    return TimeToTolerance.over(share, trials, took)


def differences(reference: SamplerResult, peer: SamplerResult, budget: int) -> Array:
    """Return the reference's regrets (runs,) minus the peer's after `budget` trials."""
    mine, other = (np.array([row[budget - 1] for row in one.regrets]) for one in (reference, peer))
    return np.asarray(mine - other)


def _row(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values.tolist())


def _round_rows(values: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(map(_row, values))
