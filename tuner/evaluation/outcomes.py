"""Outcomes of evaluations without a measurement. Pure.

A replica that ran out of memory takes precedence, as it explains the deaths of others.
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


def of_refusal(error: LaunchFailed) -> Outcome:
    """Return the outcome of a failed launch."""
    return Outcome(
        status="failed" if error.cause in BROKEN else "infeasible",
        cause=error.cause,
        reason=error.text,
    )


def of_deaths(facts: ReplicaFacts) -> Outcome | None:
    """Return the outcome of an evaluation whose replicas died, or None if none died."""
    if not facts.deaths:
        return None
    oom = facts.died_of("oom")
    death = oom or facts.deaths[-1]
    reason = f"{death.who} ended under load: {death.text}"
    if oom is not None:
        return Outcome(status="infeasible", cause="oom", reason=reason)
    return Outcome(status="failed", cause="crash", reason=reason)


def count_failures(
    evaluations: Iterable[RoundEvaluation], limits: Sequence[MetricConstraint] = ()
) -> dict[str, FailureCount]:
    """Count evaluations and failures by arm; an arm that violates a constraint fails throughout."""
    found: dict[str, FailureCount] = {}
    measured: dict[str, list[Measurement]] = {}
    for evaluation in evaluations:
        if evaluation.measurement is not None:
            measured.setdefault(evaluation.role, []).append(evaluation.measurement)
        before = found.get(evaluation.role, FailureCount())
        is_ok = evaluation.measurement is not None
        found[evaluation.role] = FailureCount(
            evaluations=before.evaluations + 1,
            failed=before.failed + (not is_ok),
            reason=before.reason if is_ok else evaluation.outcome.reason,
        )
    for role, measurements in measured.items():
        why = find_violation(limits, measurements)
        if why is not None:
            count = found[role].evaluations
            found[role] = FailureCount(evaluations=count, failed=count, reason=why)
    return found
