"""Conversion between Luthier's trials and Optuna's.

    state     COMPLETE with a value: ok
              PRUNED without one: infeasible or failed (Optuna's samplers learn from it)
              FAIL without an outcome: interrupted
              RUNNING: being measured now
    params    knob values as proposed
    user      origin, configuration (as evaluated), outcome, measurement, error, headroom,
              effort, facts {startup_s, overhead_s, started_at; on other machines node}; with
              metric constraints
              slacks; with two objectives second; if a metric constraint is violated,
              missed (the measurement) and value (the objective); second_try if it repeats a
              trial whose machine was lost
    system    constraints, with metric constraints: Optuna's list of one value each, of which a
              feasible trial has none above 0

There are few attributes, with JSON inside, since each is a storage transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from tuner.values.configuration import Configuration
from tuner.values.measurement import Measurement
from tuner.values.plain import parse, to_plain
from tuner.values.trial import OK, Outcome, Trial

UNKNOWN_EXCESS = 1.0
"""Excess written for a constraint whose metric an unsuccessful trial does not tell."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Result of one evaluation; `objective` is minimised, and None unless the outcome is ok."""

    outcome: Outcome
    measurement: Measurement | None
    objective: float | None
    startup_s: float
    overhead_s: float
    started_at: float
    node: str = ""
    error: float | None = None
    """Relative standard error of the objective, from this evaluation alone."""
    headroom: float | None = None
    effort: float | None = None
    """Log CPU time per request, if it is related to the objective's noise."""
    missed: Measurement | None = None
    """Measurement that violates a metric constraint, or lacks the constrained metric."""
    value: float | None = None
    second: tuple[float, float | None] | None = None
    """Log of the minimised second objective, and its standard error."""
    slacks: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(
        default_factory=dict
    )
    """`MetricConstraint.log_excess`, or None, and its standard error, by metric constraint."""


def attributes(result: TrialResult) -> dict[str, Any]:
    """Return the user attributes of a result."""
    values: dict[str, Any] = {
        "outcome": dataclasses.asdict(result.outcome),
        "facts": {
            "startup_s": result.startup_s,
            "overhead_s": result.overhead_s,
            "started_at": result.started_at,
            **({"node": result.node} if result.node else {}),
        },
    }
    names = ["error", "headroom", "effort", "measurement", "missed", "second"]
    names += ["value"] if result.missed is not None else []
    known = {name: getattr(result, name) for name in names}
    values |= {name: to_plain(value) for name, value in known.items() if value is not None}
    if result.slacks:
        values["slacks"] = to_plain(result.slacks)
    return values


def constraints(result: TrialResult) -> list[float]:
    """Return a result's metric constraints as Optuna has them: above 0 if infeasible."""
    found = [UNKNOWN_EXCESS if excess is None else excess for excess, _ in result.slacks.values()]
    if result.outcome.status == "ok":
        return [min(0.0, excess) for excess in found]
    return found if any(excess > 0 for excess in found) else [UNKNOWN_EXCESS] * len(found)


def is_ended(frozen: FrozenTrial) -> bool:
    """Whether a trial ended and counts: it is neither running nor interrupted."""
    return (
        frozen.state in {TrialState.COMPLETE, TrialState.PRUNED} and "outcome" in frozen.user_attrs
    )


def as_trial(frozen: FrozenTrial) -> Trial:
    """Convert a trial that has ended."""
    attrs = frozen.user_attrs
    outcome = Outcome(**attrs["outcome"])
    return Trial(
        number=frozen.number,
        configuration=Configuration(attrs["configuration"]),
        outcome=OK if outcome.status == "ok" else outcome,
        measurement=parse(Measurement, attrs.get("measurement")),
        origin=str(attrs["origin"]),
        objective=frozen.value if frozen.state is TrialState.COMPLETE else None,
        missed=parse(Measurement, attrs.get("missed")),
        **attrs["facts"],
    )


def as_trials(frozen_trials: Iterable[FrozenTrial]) -> tuple[Trial, ...]:
    """Convert all trials that have ended, ordered by number."""
    ended = sorted(filter(is_ended, frozen_trials), key=lambda frozen: frozen.number)
    return tuple(as_trial(frozen) for frozen in ended)
