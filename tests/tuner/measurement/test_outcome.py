"""What counts as a measurement: the share of errors, and the limit on p99."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tuner.measurement.outcome import (
    MAX_ERROR_SHARE,
    REJECTIONS,
    EvaluationRequirements,
    measure_outcome,
)
from tuner.metrics.metric_constraints import of_slo
from tuner.values.measurement import HostNoise, Measurement
from tuner.values.request_records import RequestRecords
from tuner.values.trial import OK


@pytest.mark.parametrize(("failed", "status"), [(0, "ok"), (2, "ok"), (3, "failed")])
def test_more_than_one_request_in_a_hundred_makes_a_failed_trial(
    simulate: Callable[..., RequestRecords], failed: int, status: str
) -> None:
    """Of 200 requests two may fail; a third makes the trial a failed one, with the count."""
    records = simulate(lambda: 0.01, concurrency=1, until_s=2.0)
    answers = np.full(len(records.status), 200, np.int16)
    answers[:failed] = 503
    outcome, measurement = measure_outcome(
        dataclasses.replace(records, status=answers),
        concurrency=1,
        warmup_s=0.0,
        seconds=2.005,
        noise=HostNoise(),
        why_failed="the first of them: busy",
    )
    assert MAX_ERROR_SHARE == 0.01
    assert outcome.status == status
    assert (measurement is None) == (status == "failed")
    if status == "failed":
        assert outcome.reason == (
            "3 of 200 requests (1.5 %) failed: 3 x status 503; the first of them: busy"
        )


@pytest.mark.parametrize(
    ("status", "expected"), [(0, "overload"), (503, "overload"), (429, "overload"), (500, "errors")]
)
def test_an_open_loop_that_is_refused_is_an_overload(
    simulate: Callable[..., RequestRecords], status: int, expected: str
) -> None:
    """Not answered or refused for want of room: the rate cannot be served. A server's fault stays a failure."""
    records = simulate(lambda: 0.01, concurrency=1, until_s=2.0)
    answers = np.full(len(records.status), 200, np.int16)
    answers[:30] = status
    outcome, measurement = measure_outcome(
        dataclasses.replace(records, status=answers),
        concurrency=None,
        warmup_s=0.0,
        seconds=2.0,
        noise=HostNoise(),
        rate_per_s=100.0,
    )
    assert outcome.cause == expected
    assert outcome.status == ("failed" if expected == "errors" else "infeasible")
    assert measurement is None
    if expected == "overload":
        assert outcome.reason.startswith("cannot serve 100 requests/s: ")


def test_a_server_that_fell_behind_has_no_latency_of_its_own(
    simulate: Callable[..., RequestRecords],
) -> None:
    """However good its answers were: infeasible, with the share; without it, the figures and their rate."""
    records = simulate(lambda: 0.01, concurrency=1, until_s=2.0)
    load = {"concurrency": None, "warmup_s": 0.0, "seconds": 2.0, "noise": HostNoise()}
    outcome, measurement = measure_outcome(records, **load, rate_per_s=1234.5, fell_behind=0.31)
    assert measurement is None
    assert (outcome.status, outcome.cause) == ("infeasible", "overload")
    assert outcome.reason == "cannot serve 1,234 requests/s: it fell behind by 31 % of the requests"
    outcome, measurement = measure_outcome(records, **load, rate_per_s=100.0)
    assert outcome == OK
    assert measurement is not None
    assert (measurement.rate_per_s, measurement.late_share) == (100.0, 0.0)
    assert measurement.little_error is None
    assert Measurement.from_json(measurement.as_json()) == measurement


def test_each_reason_for_no_figure_of_an_open_loop_has_a_line_of_its_own(
    simulate: Callable[..., RequestRecords], measured: Callable[..., Measurement]
) -> None:
    """All refused, with the server's reasons; nothing due in time; and answers that all came late."""
    records = simulate(lambda: 0.01, concurrency=1, until_s=2.0)
    load = {"concurrency": None, "seconds": 2.0, "noise": HostNoise(), "refusals": (503,)}
    refused = dataclasses.replace(records, status=np.full(len(records.status), 503, np.int16))
    outcome, measurement = measure_outcome(
        refused, **load, warmup_s=0.0, deadline_ms=50.0, why_refused="no replica is free"
    )
    assert measurement is None
    assert (outcome.status, outcome.cause) == ("infeasible", "constraint")
    assert outcome.reason.startswith(
        "all 199 requests were rejected, as none could be answered within 50 ms (no replica is free); use"
    )
    outcome, _ = measure_outcome(refused, **load, warmup_s=0.0)
    assert "(199 x status 503)" in outcome.reason
    outcome, measurement = measure_outcome(records, **load, warmup_s=60.0)
    assert measurement is None
    assert outcome.reason.startswith(
        "no request was due in the measured 2 s (200 before them, in the warm-up); measure for longer"
    )
    late = EvaluationRequirements(objective="goodput").outcome(measured(10.0, goodput=0.0))
    assert late.status == "infeasible"
    assert "responses came within the deadline (--slo-ms; the median latency is" in late.reason


def test_the_limit_is_on_p99(measured: Callable[..., Measurement]) -> None:
    """At the limit is within it; above it the configuration is infeasible, not failed."""
    assert EvaluationRequirements(objective="mean").outcome(measured(10.0)) == OK
    assert (
        EvaluationRequirements(objective="mean", limits=(of_slo(20.0),)).outcome(measured(10.0))
        == OK
    )
    outcome = EvaluationRequirements(objective="mean", limits=(of_slo(19.9),)).outcome(
        measured(10.0)
    )
    assert (outcome.status, outcome.cause) == ("infeasible", "constraint")
    assert outcome.reason == "p99 of 20 ms is above the limit of 19.9 ms (--slo-ms)"


@pytest.mark.parametrize(
    ("needs", "status"),
    [
        (EvaluationRequirements(objective="mean"), "ok"),
        (EvaluationRequirements(objective="p95"), "ok"),
        (EvaluationRequirements(objective="p99"), "failed"),
        (EvaluationRequirements(objective="mean", limits=(of_slo(1e6),)), "failed"),
    ],
)
def test_a_launch_too_short_for_a_p99_fails_where_one_is_needed(
    measured: Callable[..., Measurement], needs: EvaluationRequirements, status: str
) -> None:
    """1,000 requests that are worth 200: whoever asks for a p99 hears how long a launch must be."""
    outcome = needs.outcome(measured(10.0, p99_effective=200.0))
    assert outcome.status == status
    if status == "failed":
        assert outcome.cause == "short"
        assert outcome.reason == (
            "p99 rests on 200 effective requests (of 1,000), under 459: measure each evaluation "
            "for longer (--seconds 7)"
        )


def test_a_default_that_is_just_long_enough_is_remarked(
    measured: Callable[..., Measurement],
) -> None:
    """Slower configurations have fewer requests."""
    needs = EvaluationRequirements(objective="p99")
    assert "--seconds 5" in (needs.remark(measured(10.0, p99_effective=600.0)) or "")
    assert needs.remark(measured(10.0, p99_effective=1_000.0)) is None
    assert (
        EvaluationRequirements(objective="mean").remark(measured(10.0, p99_effective=10.0)) is None
    )


@pytest.mark.parametrize(
    ("refused", "others", "status", "ended"),
    [
        (150, 0, 503, "ok"),
        (150, 2, 500, "ok"),
        (150, 3, 500, "failed errors"),
        (150, 3, 0, "infeasible overload"),
        (200, 0, 503, "infeasible constraint"),
        (150, 50, 500, "failed errors"),
    ],
)
def test_a_scenario_may_be_refused_as_much_as_it_asks_too_much(
    simulate: Callable[..., RequestRecords], refused: int, others: int, status: int, ended: str
) -> None:
    """Refusals are counted and are no errors; what fails otherwise keeps its rule; no answer at all is no solution."""
    records = simulate(lambda: 0.01, concurrency=1, until_s=2.0)
    answers = np.full(len(records.status), 200, np.int16)
    answers[:refused] = np.resize(sorted(REJECTIONS), refused)
    answers[refused : refused + others] = status
    outcome, measurement = measure_outcome(
        dataclasses.replace(records, status=answers),
        concurrency=None,
        warmup_s=-0.001,
        seconds=3.0,
        noise=HostNoise(),
        rate_per_s=100.0,
        deadline_ms=100.0,
        refusals=REJECTIONS,
    )
    assert f"{outcome.status} {outcome.cause or ''}".strip() == ended
    if measurement is not None:
        assert (measurement.refused, measurement.errors) == (refused, others)
        assert measurement.requests == len(answers) - refused - others
        assert measurement.answered_share == pytest.approx(measurement.requests / len(answers))
