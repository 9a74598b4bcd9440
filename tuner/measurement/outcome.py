"""Judgement of a phase: an `Outcome`, with a `Measurement` if it is ok."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Self

import numpy as np

from tuner.measurement import summary
from tuner.metrics import tail_latency
from tuner.metrics.metric_constraints import MetricConstraint, find_violation
from tuner.metrics.objective import find_objective
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.workload import rate_in_words
from tuner.values.measurement import MIN_FOR_P99, HostNoise, Measurement
from tuner.values.request_records import CpuTimeSeries, RequestRecords
from tuner.values.trial import OK, Cause, Outcome

MAX_ERROR_SHARE = 0.01
"""Tolerable share of failed requests; errors are often fast, and flatter a phase."""
OF_OVERLOAD = frozenset({0, 429, 503, 504})
REJECTIONS = OF_OVERLOAD - {0}

SAFE = 2
"""Multiple of the minimum number of requests that leaves room for slower configurations."""


def measure_outcome(
    records: RequestRecords,
    *,
    concurrency: int | None,
    warmup_s: float,
    seconds: float,
    block_s: float = 0.5,
    noise: HostNoise,
    most_error_share: float = MAX_ERROR_SHARE,
    why_failed: str = "",
    client_batch: int = 1,
    deadline_ms: float | None = None,
    rate_per_s: float | None = None,
    fell_behind: float = 0.0,
    refusals: Collection[int] = (),
    why_refused: str = "",
    client_cpu: CpuTimeSeries | None = None,
) -> tuple[Outcome, Measurement | None]:
    """Judge the measured part of a phase; see `summary.summarise`.

    If the server `fell_behind`, its latency depends on the measuring time.

    Returns:
        A measurement only if the outcome is ok. Otherwise it is failed with cause `timeout`
        (nothing finished) or `errors`, or infeasible with cause `overload` (open loop) or
        `constraint` (all rejected).
    """
    if fell_behind:
        why = f"it fell behind by {100 * fell_behind:.0f} % of the requests"
        return overload_outcome(rate_per_s, why), None
    is_open = concurrency is None
    measured = summary.is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    status = records.status[measured]
    finished = len(status)
    turned_down = int(np.isin(status, sorted(refusals)).sum())
    failed = int((measured & ~summary.is_ok(records)).sum()) - turned_down
    told = summary.statuses(records, measured)
    because = f"; {why_failed}" if why_failed and failed else ""
    is_broken = failed > most_error_share * finished
    overloaded = int(np.isin(status, sorted(OF_OVERLOAD.difference(refusals))).sum())
    if is_broken and is_open and 2 * overloaded > failed:
        why = f"{failed} of {finished} failed: {told}{because}"
        return overload_outcome(rate_per_s, why), None
    if is_broken or failed == finished:
        why = summary.nothing_measured(records, measured, seconds, is_open=is_open)
        return _broken(finished, failed, why if failed == finished else told, because), None
    if turned_down + failed == finished:
        return _all_refused(finished, deadline_ms, why_refused or told), None
    return OK, summary.summarise(
        records,
        concurrency=concurrency,
        warmup_s=warmup_s,
        seconds=seconds,
        block_s=block_s,
        noise=noise,
        client_batch=client_batch,
        deadline_ms=deadline_ms,
        rate_per_s=rate_per_s,
        refusals=refusals,
        client_cpu=client_cpu,
    )


def _broken(finished: int, failed: int, why: str, because: str) -> Outcome:
    if failed == finished:
        cause: Cause = "errors" if finished else "timeout"
        return Outcome(status="failed", cause=cause, reason=why + because)
    share = 100 * failed / finished
    reason = f"{failed} of {finished} requests ({share:.1f} %) failed: {why}{because}"
    return Outcome(status="failed", cause="errors", reason=reason)


def _all_refused(finished: int, deadline_ms: float | None, why: str) -> Outcome:
    within = "in time" if deadline_ms is None else f"within {deadline_ms:g} ms"
    reason = (
        f"all {finished} requests were rejected, as none could be answered {within} "
        f"({why}); use a longer deadline (deadline_ms), a lower rate, or fewer items"
    )
    return Outcome(status="infeasible", cause="constraint", reason=reason)


def overload_outcome(rate_per_s: float | None, why: str) -> Outcome:
    """Return the outcome for an open-loop rate that cannot be served."""
    rate = "the requests" if rate_per_s is None else rate_in_words(rate_per_s)
    return Outcome(status="infeasible", cause="overload", reason=f"cannot serve {rate}: {why}")


def no_rate(slo_ms: float, lowest_per_s: float) -> Outcome:
    """Return the outcome if p99 exceeds its limit at every tried rate."""
    reason = (
        f"p99 is above the limit of {slo_ms:g} ms (--slo-ms) even at "
        f"{rate_in_words(lowest_per_s)}, the lowest rate tried"
    )
    return Outcome(status="infeasible", cause="constraint", reason=reason)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequirements:
    """Metrics that an evaluation must report, with its metric constraints."""

    objective: str
    limits: tuple[MetricConstraint, ...] = ()
    second: str | None = None

    @classmethod
    def of(cls, settings: MeasurementSettings) -> Self:
        """Return the requirements for a study's evaluations."""
        return cls(objective=settings.first, second=settings.second, limits=settings.limits)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return (self.objective,) if self.second is None else (self.objective, self.second)

    @property
    def needs_p99(self) -> bool:
        """Whether an evaluation without a p99 is insufficient."""
        return "p99" in self.names or any(one.metric == "p99_ms" for one in self.limits)

    def remark(self, measurement: Measurement) -> str | None:
        """Return a warning if slower configurations may lack requests for a p99, or None."""
        is_safe = measurement.effective >= SAFE * MIN_FOR_P99
        if not self.needs_p99 or is_safe or not measurement.has_p99:
            return None
        seconds = tail_latency.seconds_for(
            SAFE * MIN_FOR_P99, effective=measurement.effective, seconds=measurement.seconds
        )
        return (
            f"the default's p99 rests on {measurement.effective:,.0f} effective requests: configurations "
            f"that answer less often may fall under {MIN_FOR_P99}, and are measured for longer then; "
            f"--seconds {seconds:g} would leave room"
        )

    def tells_objectives(self, measurement: Measurement) -> bool:
        """Whether the objectives are known and positive."""
        values = [find_objective(name).value(measurement) for name in self.names]
        return all(math.isfinite(value) and value > 0 for value in values)

    def outcome_of(self, measurement: Measurement) -> Outcome:
        """Return ok, or an outcome that says why a required metric is missing."""
        if self.needs_p99 and not measurement.has_p99:
            return Outcome(status="failed", cause="short", reason=tail_latency.too_few(measurement))
        if "goodput" in self.names and not measurement.goodput:
            reason = (
                f"none of {measurement.requests} responses came within the deadline "
                f"(--slo-ms; the median latency is {measurement.p50_ms:.3g} ms); use a "
                "longer deadline or less load"
            )
            return Outcome(status="infeasible", cause="constraint", reason=reason)
        wanted = {name: find_objective(name).value(measurement) for name in self.names}
        wanted |= {limit.metric: limit.of.value(measurement) for limit in self.limits}
        for name, value in wanted.items():
            if not math.isfinite(value):
                reason = f"its {name} is unknown: this server or machine does not report it"
                return Outcome(status="failed", cause="errors", reason=reason)
        return OK

    def outcome(self, measurement: Measurement) -> Outcome:
        """Return `outcome_of`, or infeasible with cause `constraint` if one is violated."""
        outcome = self.outcome_of(measurement)
        why = find_violation(self.limits, [measurement])
        if outcome.status != "ok" or why is None:
            return outcome
        return Outcome(status="infeasible", cause="constraint", reason=why)
