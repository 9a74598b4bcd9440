"""The result of `tune compare`: searches by several samplers."""

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
    """Number of the repeat, from 0; its runs share a seed and pair up."""
    seed: int
    study: str
    objectives: tuple[float | None, ...]
    """Objective per trial in its unit, not negated; None unless ok."""
    best_so_far: tuple[float | None, ...]
    """Best objective after each trial; None before a success."""
    wall_s: float
    winner: Configuration | None
    remeasured: tuple[Measurement, ...] = ()
    """The winner's final evaluations."""
    seconds: tuple[float, ...] = ()
    """Seconds to each trial's end, with the profile, without other searches; empty in old files."""
    profiling: int = 0
    """Number of trials spent on the profile."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDifference:
    """Comparison of two samplers by their re-evaluated winners."""

    first: str
    second: str
    outcome: VerdictOutcome
    """Outcome for `first` against `second`."""
    ratio: float
    """Ratio of `first`'s winners to `second`'s."""
    interval: Interval
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord(Plain):
    """Result of `tune compare`."""

    name: str
    model: str
    concurrency: int
    objective: str
    """Objective, as in `StudyRecord`."""
    samplers: tuple[str, ...]
    repeats: int
    trials: int
    """Number of trials per run, including the default and failures."""
    runs: tuple[SamplerRun, ...]
    differences: tuple[SamplerDifference, ...]
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    client_batch: int = 1
