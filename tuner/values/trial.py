"""A trial of a search, and how an evaluation ended."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Literal

from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement

Status = Literal["ok", "infeasible", "failed"]
Cause = Literal[
    "oom", "start", "crash", "errors", "timeout", "limits", "constraint", "overload", "short"
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome: ok, infeasible (cannot work), or failed (broke while running)."""

    status: Status
    cause: Cause | None = None
    reason: str = ""


OK = Outcome(status="ok")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One evaluation of a search, as stored."""

    number: int
    configuration: Configuration
    outcome: Outcome
    measurement: Measurement | None
    origin: str
    """Origin: default, initial, guided, replicate or check."""
    objective: float | None
    """The sampler's minimised value; None unless ok."""
    startup_s: float
    """Time until the server was ready."""
    overhead_s: float
    """Time outside warm-up and measurement."""
    started_at: float
    """Start as Unix time, for display only."""
    missed: Measurement | None = None
    """Measurement that violates a constraint or cannot decide it."""

    @property
    def measured(self) -> Measurement | None:
        """Measurement, whether constraints are met or not."""
        return self.missed if self.measurement is None else self.measurement


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial with the lowest objective, if any succeeded."""
    found = [(trial.objective, trial) for trial in trials if trial.objective is not None]
    return min(found, key=operator.itemgetter(0), default=(None, None))[1]
