"""How a launch is judged where no measurement says it."""

from __future__ import annotations

import pytest

from tuner.errors import LaunchFailed
from tuner.evaluation import outcomes
from tuner.launching.replica_facts import ReplicaFacts, ReportedDeath
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.trial import Cause, Outcome


def facts(*deaths: ReportedDeath) -> ReplicaFacts:
    return ReplicaFacts(replicas=(), deaths=deaths)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        ("oom", "infeasible"),
        ("start", "infeasible"),
        ("timeout", "infeasible"),
        ("constraint", "infeasible"),
        ("crash", "failed"),
        ("limits", "failed"),
    ],
)
def test_refused_settings_are_infeasible_broken_engines_failed(cause: Cause, status: str) -> None:
    """What the configuration causes is infeasible; what breaks beside it is failed."""
    found = outcomes.of_refusal(LaunchFailed(cause, "why"))
    assert (found.status, found.cause, found.reason) == (status, cause, "why")


def test_a_death_by_memory_explains_the_others() -> None:
    """Of several deaths the one by memory decides, with the engine's figures in the reason."""
    crash = ReportedDeath(reason="crash", text="ended by signal 11 (SIGSEGV)")
    oom = ReportedDeath(reason="oom", text="killed for memory (peak 64 MiB, limit 64 MiB)")
    found = outcomes.of_deaths(facts(oom, crash))
    assert found is not None
    assert (found.status, found.cause) == ("infeasible", "oom")
    assert "peak 64 MiB, limit 64 MiB" in found.reason


def test_other_deaths_are_crashes_and_none_is_no_outcome() -> None:
    """A replica that crashed failed the trial; without deaths there is nothing to judge."""
    found = outcomes.of_deaths(facts(ReportedDeath(reason="hang", text="held one batch for 30 s")))
    assert found is not None
    assert (found.status, found.cause) == ("failed", "crash")
    assert outcomes.of_deaths(facts()) is None


def test_fresh_starts_are_counted_by_role() -> None:
    """With the last reason of those that failed."""
    starts = [
        RoundEvaluation(
            role=role,
            outcome=Outcome(status="infeasible", cause="oom", reason=reason),
            measurement=None,
        )
        for role, reason in (("best", "first"), ("best", "second"), ("default", "other"))
    ]
    assert outcomes.count_failures(starts) == {
        "best": FailureCount(evaluations=2, failed=2, reason="second"),
        "default": FailureCount(evaluations=1, failed=1, reason="other"),
    }
    assert outcomes.count_failures([]) == {}
