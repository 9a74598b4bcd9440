"""A trial of ours as Optuna keeps it, and back.

    state     COMPLETE with a value: ok
              PRUNED without one: infeasible or failed (Optuna's own samplers learn from it)
              FAIL without an outcome: interrupted
              RUNNING: being measured now
    params    the knobs as they were proposed
    user      origin, configuration (as launched), outcome, measurement, error, headroom, effort,
              facts {launch_s, overhead_s, started_at}; under limits slacks, with two
              objectives second, and of a launch that
              misses one missed (its measurement) and value (its objective)

Few attributes with JSON inside, because every attribute is a transaction of the storage. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from tuner.values import OK, Configuration, Measurement, Outcome, Trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What one launch gave; `objective` in the study's own unit, None unless ok."""

    outcome: Outcome
    measurement: Measurement | None
    objective: float | None
    launch_s: float
    overhead_s: float
    started_at: float
    error: float | None = None
    """Standard error of the objective within its launch, as a share; None where it is not known."""
    headroom: float | None = None
    """Logarithm of the replicas' peak memory over their limit; None where one of them is not known."""
    effort: float | None = None
    """Logarithm of the CPU time of a request, where it tells of the objective's noise and is known."""
    missed: Measurement | None = None
    """What was measured of a launch that misses a limit, or does not tell whether it does."""
    value: float | None = None
    """Its objective."""
    second: tuple[float, float | None] | None = None
    """Logarithm of a second objective, minimised, with its standard error; None in a study of one."""
    slacks: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(
        default_factory=dict
    )
    """By limit: by how much the launch lies beyond it (`limits.Limit.slack`), None where it does not tell, with
    a standard error."""


def attributes(result: TrialResult) -> dict[str, Any]:
    """User attributes that hold a result."""
    values: dict[str, Any] = {
        "outcome": dataclasses.asdict(result.outcome),
        "facts": {
            "launch_s": result.launch_s,
            "overhead_s": result.overhead_s,
            "started_at": result.started_at,
        },
    }
    if result.error is not None:
        values["error"] = result.error
    if result.headroom is not None:
        values["headroom"] = result.headroom
    if result.effort is not None:
        values["effort"] = result.effort
    if result.measurement is not None:
        values["measurement"] = result.measurement.as_json()
    if result.missed is not None:
        values["missed"] = result.missed.as_json()
        values["value"] = result.value
    if result.second is not None:
        values["second"] = list(result.second)
    if result.slacks:
        values["slacks"] = {text: list(slack) for text, slack in result.slacks.items()}
    return values


def is_ended(frozen: FrozenTrial) -> bool:
    """Whether the trial ended in a way that counts: not running, not interrupted."""
    return (
        frozen.state in {TrialState.COMPLETE, TrialState.PRUNED} and "outcome" in frozen.user_attrs
    )


def as_trial(frozen: FrozenTrial) -> Trial:
    """A trial that ended, as the rest of the tuner sees it."""
    attrs = frozen.user_attrs
    measurement, missed = attrs.get("measurement"), attrs.get("missed")
    outcome = Outcome(**attrs["outcome"])
    return Trial(
        number=frozen.number,
        configuration=Configuration(attrs["configuration"]),
        outcome=OK if outcome.status == "ok" else outcome,
        measurement=None if measurement is None else Measurement.from_json(measurement),
        origin=str(attrs["origin"]),
        objective=frozen.value if frozen.state is TrialState.COMPLETE else None,
        missed=None if missed is None else Measurement.from_json(missed),
        **attrs["facts"],
    )


def as_trials(frozen_trials: Iterable[FrozenTrial]) -> tuple[Trial, ...]:
    """All trials that ended, by number."""
    ended = sorted(filter(is_ended, frozen_trials), key=lambda frozen: frozen.number)
    return tuple(as_trial(frozen) for frozen in ended)
