"""Results of a sampler benchmark on recorded tables: regrets, times and non-inferiority.

Regrets are shares of the optimum (0.02 is 2 %); seconds are wall seconds, with starts, warm-up and
the sampler.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

NonInferiorityResult = Literal["better", "non-inferior", "not shown", "worse"]
"""Result of comparing the reference with a peer.

better: the bound of the mean regret difference is below 0; non-inferior: it is at most the margin;
worse: the opposite bound is above the margin; not shown: none of these.
"""
MIN_UNITS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """Statistics over runs, with one value per trial."""

    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTolerance:
    """Time after which a sampler's recommendation stays within a tolerance of the best."""

    share: float
    trials: tuple[float | None, ...]
    seconds: tuple[float | None, ...]
    median: float | None
    """Trials after which half of the runs have succeeded, or None if fewer do."""
    p90: float | None
    median_s: float | None
    p90_s: float | None
    reached: float

    @classmethod
    def over(cls, share: float, trials: Sequence[float], seconds: Sequence[float]) -> Self:
        """Summarise the trials and seconds that runs took, infinite for failed runs."""
        return cls(
            share=share,
            trials=tuple(map(_finite, trials)),
            seconds=tuple(map(_finite, seconds)),
            median=rank(trials, 0.5),
            p90=rank(trials, 0.9),
            median_s=rank(seconds, 0.5),
            p90_s=rank(seconds, 0.9),
            reached=sum(map(math.isfinite, trials)) / len(trials),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerResult:
    """Result of one sampler's searches on one table."""

    sampler: str
    regrets: tuple[tuple[float, ...], ...]
    seconds: tuple[tuple[float, ...], ...]
    """Seconds until the end of each trial, (runs, trials)."""
    regret: Quartiles
    within: tuple[TimeToTolerance, ...]
    failures: float
    sampler_ms: float

    def time_to_tolerance(self, share: float) -> TimeToTolerance:
        """Return the time after which runs stay within a share of the optimum."""
        return next(one for one in self.within if one.share == share)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """Comparison of the reference with one peer by the mean difference of their regrets."""

    peer: str
    budget: int
    units: int
    difference: float
    """Regret of the reference minus the peer's; negative favours the reference."""
    upper: float | None
    """One-sided 95 % bound of the mean, by Student's t; None for fewer than five units."""
    p: float | None
    """p-value of the hypothesis that the mean is at or above the margin."""
    corrected_p: float | None
    standing: NonInferiorityResult


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableBenchmark:
    """Benchmark of samplers on one table."""

    name: str
    model: str
    concurrency: int
    client_batch: int
    engine: str
    objective: str
    unit: str
    candidates: int
    optimum: float
    optimum_se: float
    default_regret: float | None
    """Regret of the default, or None if it does not work."""
    good_candidates: Mapping[float, int]
    tolerances: Mapping[float, float]
    random_median: Mapping[float, int]
    """Number of trials after which half of all random searches have met a good candidate."""
    contestants: tuple[SamplerResult, ...]
    noninferiority: tuple[NonInferiority, ...]
    notes: tuple[str, ...]
    rate_per_s: float | None = None

    def of(self, sampler: str) -> SamplerResult | None:
        """Return a sampler's result, or None if it did not take part."""
        return next((one for one in self.contestants if one.sampler == sampler), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRecord:
    """Benchmark of samplers on all tables."""

    name: str
    samplers: tuple[str, ...]
    reference: str
    trials: int
    seeds: int
    margin: float
    tables: tuple[TableBenchmark, ...]
    over_tables: tuple[NonInferiority, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data, as printed by `tune replay --json`."""
        data = dataclasses.asdict(self)
        for table in data["tables"]:
            for name in ("good_candidates", "tolerances", "random_median"):
                table[name] = {f"{share:g}": value for share, value in table[name].items()}
        return data


def rank(values: Sequence[float], share: float) -> float | None:
    """Return the value that this share of runs does not exceed, or None if infinite."""
    return _finite(sorted(values)[max(0, math.ceil(share * len(values)) - 1)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
