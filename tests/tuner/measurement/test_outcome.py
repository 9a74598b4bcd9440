"""What counts as a measurement: the share of errors, and the limit on p99."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tuner.measurement.outcome import MOST_ERROR_SHARE, limit_outcome, measure_outcome
from tuner.values import OK, HostNoise, Measurement, RequestRecords


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
    assert MOST_ERROR_SHARE == 0.01
    assert outcome.status == status
    assert (measurement is None) == (status == "failed")
    if status == "failed":
        assert outcome.reason == (
            "3 of 200 requests (1.5 %) failed: 3 x status 503; the first of them: busy"
        )


def test_the_limit_is_on_p99(measured: Callable[..., Measurement]) -> None:
    """At the limit is within it; above it the configuration is infeasible, not failed."""
    assert limit_outcome(measured(10.0), None) == OK
    assert limit_outcome(measured(10.0), 20.0) == OK
    outcome = limit_outcome(measured(10.0), 19.9)
    assert (outcome.status, outcome.cause) == ("infeasible", "constraint")
    assert outcome.reason == "p99 of 20 ms is above the limit of 19.9 ms (--slo-ms)"
