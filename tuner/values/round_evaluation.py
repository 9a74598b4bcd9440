"""An evaluation of an arm in a round, and the failures of an arm."""

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
    """None unless ok."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency per time slice, 0 for one left out; empty if unsliced."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Round evaluations and failures of an arm."""

    launched: int = 0
    failed: int = 0
    reason: str = ""
    """Of the last failure."""

    @property
    def mostly_failed(self) -> bool:
        """Whether more than half failed."""
        return 2 * self.failed > self.launched

    @property
    def all_failed(self) -> bool:
        """Whether all failed, of at least one."""
        return self.launched > 0 and self.failed == self.launched
