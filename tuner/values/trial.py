"""Trial of a search, and the outcome of an evaluation."""

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
    """How an evaluation ended: ok, infeasible (cannot work), or failed (broke while running)."""

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
    """One of default, initial, guided, replicate or check."""
    objective: float | None
    """Value that the sampler minimises; None unless ok."""
    startup_s: float
    overhead_s: float
    """Time in addition to warm-up and measurement."""
    started_at: float
    """Unix time of the start, for display only."""
    node: str = ""
    """Name of the machine; empty: this one."""
    missed: Measurement | None = None
    """Measurement that violates a metric constraint or lacks the constrained metric."""

    @property
    def measured(self) -> Measurement | None:
        """Measurement, whether or not constraints are met."""
        return self.missed if self.measurement is None else self.measurement


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial with the lowest objective, or None if none succeeded."""
    found = [(trial.objective, trial) for trial in trials if trial.objective is not None]
    return min(found, key=operator.itemgetter(0), default=(None, None))[1]
