"""Evaluation of an arm in a round, and an arm's failures."""

from __future__ import annotations

import dataclasses

from tuner.values.measurement import Measurement
from tuner.values.plain import Plain
from tuner.values.trial import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvaluation(Plain):
    """Evaluation of an arm in a round."""

    role: str
    outcome: Outcome
    measurement: Measurement | None
    """Measurement, or None unless the outcome is ok."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency of each time slice, 0 for an omitted slice; empty without slices."""
    node: str = ""
    """Machine that evaluated it, as that of a trial."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Number of an arm's round evaluations, and how many of them failed."""

    evaluations: int = 0
    failed: int = 0
    reason: str = ""

    @property
    def mostly_failed(self) -> bool:
        """Whether more than half of the evaluations failed."""
        return 2 * self.failed > self.evaluations

    @property
    def all_failed(self) -> bool:
        """Whether all evaluations failed, and there is at least one."""
        return self.evaluations > 0 and self.failed == self.evaluations
