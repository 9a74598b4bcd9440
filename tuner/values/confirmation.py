"""Confirmation: an export, measured where it runs, against what its study measured."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.plain import Plain
from tuner.values.round_evaluation import RoundEvaluation

ConfirmationOutcome = Literal["same", "better", "worse", "undecided"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedComparison:
    """Comparison of two independent groups of evaluations; the ratio is here over study."""

    outcome: ConfirmationOutcome
    ratio: float
    interval: Interval
    """95 % interval of the ratio."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation(Plain):
    """One measurement of an export."""

    where: str
    """URL of the server, or how the figures came if it was not reached."""
    measured_at: float
    """Unix time of the end, for display only."""
    configuration: Configuration
    trial: int | None = None
    """Trial whose configuration was exported; None for the recommendation."""
    objective: str
    outcome: ConfirmationOutcome
    ratio: float
    interval: Interval
    margin: float
    """Difference that still counts as the same, as a share."""
    evaluations: tuple[RoundEvaluation, ...]
    checked: tuple[str, ...]
    """What was compared with the study and is the same."""
    unchecked: tuple[str, ...]
    """What could not be compared with the study."""
    text: str
