"""Verdicts: the best compared with the default, or with a prediction's choice."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tuner.values.configuration import Configuration
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.plain import Plain

VerdictOutcome = Literal["better", "worse", "no difference shown"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionComparison(Plain):
    """Comparison of the best with the prediction's choice."""

    configuration: Configuration
    outcome: VerdictOutcome
    ratio: float
    """Ratio of the best to the prediction's choice."""
    interval: Interval
    pairs: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecondObjectiveVerdict:
    """Verdict on a second objective, from the same pairs."""

    objective: str
    outcome: VerdictOutcome
    ratio: float
    interval: Interval
    """Interval of the ratio within this session."""
    between_session_interval: Interval = UNKNOWN
    """Interval of the ratio expected in another session."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Plain):
    """Comparison of best and default in alternating rounds; ratios are best over default."""

    outcome: VerdictOutcome
    ratio: float
    interval: Interval
    """Interval of the ratio within this session."""
    between_session_interval: Interval = UNKNOWN
    """Interval of the ratio expected in another session."""
    throughput_ratio: float | None
    throughput_interval: Interval = UNKNOWN
    p99_ratio: float | None
    """Ratio of the p99s, or None if too few pairs have both."""
    p99_interval: Interval = UNKNOWN
    default: tuple[Measurement, ...]
    best: tuple[Measurement, ...]
    text: str
    against_prediction: PredictionComparison | None = None
    """None if there is no prediction, or if it made the same choice."""
    second: SecondObjectiveVerdict | None = None
    evaluation_sd: float | None = None
    """Sd of the pairs' log ratios beyond that of their slices, or None without slices."""
