"""An evaluation of an arm in a round, and the failures of an arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.values.measurement import Measurement
from tuner.values.trial import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvaluation:
    """Evaluation of an arm in a round."""

    role: str
    outcome: Outcome
    measurement: Measurement | None
    """None unless ok."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency per time slice, 0 for one left out; empty if unsliced."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RoundEvaluation:
        """Inverse of `as_json`."""
        measurement = data["measurement"]
        return cls(
            role=data["role"],
            outcome=Outcome(**data["outcome"]),
            measurement=None if measurement is None else Measurement.from_json(measurement),
            slices_ms=tuple(data.get("slices_ms", ())),
        )


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
