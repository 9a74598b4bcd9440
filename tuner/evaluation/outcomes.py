"""Outcomes of evaluations without a measurement; `measurement.outcome` judges responses.

A death by memory precedes response errors, which it explains. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.errors import LaunchFailed
from tuner.launching.replica_facts import ReplicaFacts
from tuner.metrics.metric_constraints import MetricConstraint, find_violation
from tuner.values.measurement import Measurement
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.trial import Cause, Outcome

BROKEN: frozenset[Cause] = frozenset({"crash", "limits"})
"""Causes outside the configuration."""


def of_refusal(error: LaunchFailed) -> Outcome:
    """Return the outcome of a failed launch."""
    return Outcome(
        status="failed" if error.cause in BROKEN else "infeasible",
        cause=error.cause,
        reason=error.text,
    )


def of_deaths(facts: ReplicaFacts) -> Outcome | None:
    """Return the outcome of replicas that died, if any."""
    if not facts.deaths:
        return None
    oom = facts.died_of("oom")
    if oom is not None:
        reason = f"{oom.who} ended under load: {oom.text}"
        return Outcome(status="infeasible", cause="oom", reason=reason)
    last = facts.deaths[-1]
    reason = f"{last.who} ended under load: {last.text}"
    return Outcome(status="failed", cause="crash", reason=reason)


def engine_gone(text: str) -> Outcome:
    """Return the outcome of a dead server."""
    return Outcome(status="failed", cause="crash", reason=f"the server ended under load: {text}")


def load_generator_failed(text: str) -> Outcome:
    """Return the outcome of a failed load generator."""
    return Outcome(status="failed", cause="errors", reason=text)


def no_energy(text: str) -> Outcome:
    """Return the outcome of unknown energy."""
    reason = f"its energy could not be measured: {text or 'the counters did not change'}"
    return Outcome(status="failed", cause="errors", reason=reason)


def count_failures(
    starts: Iterable[RoundEvaluation], limits: Sequence[MetricConstraint] = ()
) -> dict[str, FailureCount]:
    """Count round evaluations and failures by arm.

    All fail if together they violate a constraint.
    """
    found: dict[str, FailureCount] = {}
    measured: dict[str, list[Measurement]] = {}
    for start in starts:
        if start.measurement is not None:
            measured.setdefault(start.role, []).append(start.measurement)
        before = found.get(start.role, FailureCount())
        is_ok = start.measurement is not None
        found[start.role] = FailureCount(
            launched=before.launched + 1,
            failed=before.failed + (not is_ok),
            reason=before.reason if is_ok else start.outcome.reason,
        )
    for role, measurements in measured.items():
        why = find_violation(limits, measurements)
        if why is not None:
            count = found[role].launched
            found[role] = FailureCount(launched=count, failed=count, reason=why)
    return found
