"""Result of `tune compare`: searches by several samplers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.measurement import Measurement
from tuner.values.plain import Plain
from tuner.values.verdict import VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRun(Plain):
    """One search in a comparison."""

    sampler: str
    repeat: int
    """Number of the repeat, from 0; runs of a repeat share a seed and are paired."""
    seed: int
    study: str
    objectives: tuple[float | None, ...]
    """Objective of each trial in its unit, not negated; None unless ok."""
    best_so_far: tuple[float | None, ...]
    """Best objective after each trial; None before the first success."""
    wall_s: float
    winner: Configuration | None
    remeasured: tuple[Measurement, ...] = ()
    """Final evaluations of the winner."""
    seconds: tuple[float, ...] = ()
    """Seconds until each trial's end, without other searches; may be empty."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDifference:
    """Comparison of two samplers by their winners' re-evaluations."""

    first: str
    second: str
    outcome: VerdictOutcome
    ratio: float
    """Ratio of the winners of `first` to those of `second`."""
    interval: Interval
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord(Plain):
    """Result of `tune compare`."""

    name: str
    model: str
    concurrency: int
    objective: str
    samplers: tuple[str, ...]
    repeats: int
    trials: int
    """Number of trials in each run, including the default and failures."""
    runs: tuple[SamplerRun, ...]
    differences: tuple[SamplerDifference, ...]
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    client_batch: int = 1
