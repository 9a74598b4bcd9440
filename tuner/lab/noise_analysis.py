"""Analysis of a noise measurement: drift, variance components and detectable gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tuner.errors import TunerError
from tuner.measurement import drift_model, power
from tuner.measurement.drift_model import Blocks, DriftModel
from tuner.measurement.time_slices import TimeSlices
from tuner.study.budget import Budget
from tuner.values.configuration import Configuration
from tuner.values.trial import Outcome

SPENT_S = (30.0, 60.0, 120.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEvaluation:
    """One evaluation, successful or failed."""

    configuration: int
    started_at: float
    """Unix time at which the measured part began, or the evaluation if it failed."""
    took_s: float
    outcome: Outcome
    blocks_ms: tuple[float, ...]
    """Mean latency of each block; empty unless the outcome is `ok`."""
    foreign_share: float | None = None
    repeats: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DetectableGain:
    """Smallest gains detectable with 80 % probability in `spent_s` (0.04 means 4 % less)."""

    spent_s: float
    comparison: float | None
    """Gain between two configurations, server starts included; None if there is too little time."""
    study: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMeasurement:
    """Result of a noise measurement."""

    model: str
    concurrency: int
    default: Configuration
    configurations: tuple[Configuration, ...]
    means_ms: tuple[float, ...]
    """Geometric mean of each configuration's blocks; NaN if every evaluation failed."""
    tried: tuple[NoiseEvaluation, ...]
    block_s: float
    course: DriftModel
    gains: tuple[DetectableGain, ...]

    @property
    def failed(self) -> int:
        """Number of failed evaluations."""
        return sum(one.outcome.status != "ok" for one in self.tried)

    @property
    def repeated(self) -> int:
        """Number of repeated evaluations."""
        return sum(one.repeats > 0 for one in self.tried)

    @property
    def foreign_shares(self) -> tuple[float, ...]:
        """CPU shares that neighbours took, where known."""
        return tuple(one.foreign_share for one in self.tried if one.foreign_share is not None)


def read(
    budget: Budget,
    *,
    model: str,
    concurrency: int,
    default: Configuration,
    configurations: Sequence[Configuration],
    tried: Sequence[NoiseEvaluation],
    block_s: float,
) -> NoiseMeasurement:
    """Analyse the evaluations, or raise TunerError if too few succeeded."""
    worked = [(number, one) for number, one in enumerate(tried) if one.blocks_ms]
    logs = [np.log(one.blocks_ms) for _, one in worked]
    counts = list(map(len, logs))
    found = None
    if worked:
        begun_s = [one.started_at - worked[0][1].started_at for _, one in worked]
        within_s = [block_s * (np.arange(count) + 0.5) for count in counts]
        found = drift_model.fit(
            Blocks(
                at_s=np.repeat(begun_s, counts) + np.concatenate(within_s),
                logs=np.concatenate(logs),
                evaluation=np.repeat([number for number, _ in worked], counts),
                configuration=np.repeat([one.configuration for _, one in worked], counts),
            )
        )
    if found is None:
        reason = next((one.outcome.reason for one in tried if one.outcome.reason), "")
        text = f"too few evaluations worked to estimate their noise ({len(worked)} of {len(tried)})"
        raise TunerError(f"{text}: {reason}" if reason else text)
    means: list[list[float]] = [[] for _ in configurations]
    for (_, one), log in zip(worked, logs, strict=True):
        means[one.configuration] += log.tolist()
    means_ms = tuple(float(np.exp(np.mean(one))) if one else float("nan") for one in means)
    budget = budget.with_latency(1e-3 * float(np.nanmax(means_ms)))
    return NoiseMeasurement(
        model=model,
        concurrency=concurrency,
        default=default,
        configurations=tuple(configurations),
        means_ms=means_ms,
        tried=tuple(tried),
        block_s=block_s,
        course=found,
        gains=tuple(
            detectable_gain(found, budget, block_s=block_s, spent_s=spent_s) for spent_s in SPENT_S
        ),
    )


def detectable_gain(
    course: DriftModel, budget: Budget, *, block_s: float, spent_s: float
) -> DetectableGain:
    """Return the smallest gains detectable in `spent_s` within the budget."""

    def smallest(pairs: int) -> float | None:
        slices = budget.slices
        rounds = power.RoundLayout(
            number=pairs,
            slices=slices or TimeSlices.whole(budget.load_s),
            startup_s=budget.compared_s - (slices.loaded_s if slices else budget.load_s),
            is_interleaved=slices is not None,
        )
        return power.smallest_gain_of(course, rounds, block_s=block_s)

    return DetectableGain(
        spent_s=spent_s,
        comparison=smallest(budget.pairs_alone(spent_s)),
        study=smallest(budget.pairs_of_study(spent_s)),
    )
