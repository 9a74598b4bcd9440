"""Whether a phase counts as a measurement of its configuration, as a value.

In: records of a phase. Out: an `Outcome`, and the `Measurement` if it is ok. A failed trial is data
for the sampler and not an exception; this is where errors under load become one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Self

import numpy as np

from tuner import tails
from tuner.limits import Limit, missed
from tuner.measurement import summary
from tuner.objective import named
from tuner.settings import MeasurementSettings, rate_in_words
from tuner.values import (
    LEAST_FOR_P99,
    OK,
    CpuCourse,
    HostNoise,
    Measurement,
    Outcome,
    RequestRecords,
)

MOST_ERROR_SHARE = 0.01
"""A configuration that fails more than one request in a hundred does not serve this load. Errors
are often quicker than answers, so that a phase with many of them would look fast."""
OF_OVERLOAD = frozenset({0, 429, 503, 504})
"""Statuses by which a server that is asked for too much answers: not at all, or with a refusal."""
REFUSALS = OF_OVERLOAD - {0}
"""Statuses of requests that a server refuses because they cannot be in time: of a scenario no failures."""

SAFE = 2
"""Times the least number of requests at which others' launches are likely to have enough as well."""


def measure_outcome(
    records: RequestRecords,
    *,
    concurrency: int | None,
    warmup_s: float,
    seconds: float,
    block_s: float = 0.5,
    noise: HostNoise,
    most_error_share: float = MOST_ERROR_SHARE,
    why_failed: str = "",
    client_batch: int = 1,
    deadline_ms: float | None = None,
    rate_per_s: float | None = None,
    fell_behind: float = 0.0,
    refusals: Collection[int] = (),
    why_refused: str = "",
    client_cpu: CpuCourse | None = None,
) -> tuple[Outcome, Measurement | None]:
    """Judge and summarise the measured part of a phase; arguments as for `summary.summarise`, and
    the share of requests that may fail (`most_error_share`), what is known of the cause of
    failed ones, on one line (`why_failed`), by which share of the requests that were due the server
    fell behind (`LoadResult.fell_behind`), which statuses are no failures but refusals (`refusals`), and why the server
    refused (`why_refused`).

    A server that falls behind has no latency of its own: the longer one measures, the longer it is. So in an
    open loop that is no value, but a configuration that cannot serve the rate.

    Returns:
        ok and the measurement; or failed, with cause `timeout` (no request finished in the measured
        part) or `errors` (too many of them were not answered with a 2xx), and None; or, of an open loop,
        infeasible with cause `overload`, and None.
    """
    if fell_behind:
        return overloaded(rate_per_s, f"it fell behind by {100 * fell_behind:.0f} % of them"), None
    measured = summary.is_measured(
        records, warmup_s=warmup_s, seconds=seconds, is_open=concurrency is None
    )
    finished = int(np.count_nonzero(measured))
    turned_down = int(np.count_nonzero(measured & np.isin(records.status, sorted(refusals))))
    failed = int(np.count_nonzero(measured & ~summary.is_ok(records))) - turned_down
    because = f"; {why_failed}" if why_failed and failed else ""
    of_overload = sorted(OF_OVERLOAD.difference(refusals))
    refused = int(np.count_nonzero(measured & np.isin(records.status, of_overload)))
    if concurrency is None and failed > most_error_share * finished and 2 * refused > failed:
        why = f"{failed} of {finished} failed: {summary.statuses(records, measured)}{because}"
        return overloaded(rate_per_s, why), None
    if not finished or failed == finished:
        reason = summary.nothing_measured(records, measured, seconds, is_open=concurrency is None)
        reason += because
        return Outcome(
            status="failed", cause="errors" if finished else "timeout", reason=reason
        ), None
    if failed > most_error_share * finished:
        reason = (
            f"{failed} of {finished} requests ({100 * failed / finished:.1f} %) failed: "
            f"{summary.statuses(records, measured)}{because}"
        )
        return Outcome(status="failed", cause="errors", reason=reason), None
    if turned_down and turned_down + failed == finished:
        why = why_refused or summary.statuses(records, measured)
        within = "in time" if deadline_ms is None else f"within {deadline_ms:g} ms"
        reason = (
            f"all {finished} requests were refused, as none could be answered {within} ({why}): give them more "
            "time (deadline_ms), or ask less often, or for fewer items"
        )
        return Outcome(status="infeasible", cause="constraint", reason=reason), None
    measurement = summary.summarise(
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
    return OK, measurement


def overloaded(rate_per_s: float | None, why: str) -> Outcome:
    """A configuration that cannot serve the rate of an open loop."""
    rate = "the requests" if rate_per_s is None else rate_in_words(rate_per_s)
    return Outcome(status="infeasible", cause="overload", reason=f"cannot serve {rate}: {why}")


def no_rate(slo_ms: float, lowest_per_s: float) -> Outcome:
    """A configuration that keeps the limit on p99 at none of the rates that were tried."""
    reason = (
        f"p99 is above the limit of {slo_ms:g} ms (--slo-ms) even at {rate_in_words(lowest_per_s)}, the "
        "lowest rate that was tried"
    )
    return Outcome(status="infeasible", cause="constraint", reason=reason)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a launch must tell, and keep to."""

    objective: str
    """Name of what is made best."""
    limits: tuple[Limit, ...] = ()
    second: str | None = None
    """Name of a second objective."""

    @classmethod
    def of(cls, settings: MeasurementSettings) -> Self:
        """What each launch of a study must tell."""
        return cls(objective=settings.first, second=settings.second, limits=settings.limits)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the objectives."""
        return (self.objective,) if self.second is None else (self.objective, self.second)

    @property
    def needs_p99(self) -> bool:
        """Whether a launch without a p99 tells too little."""
        return "p99" in self.names or any(one.metric == "p99_ms" for one in self.limits)

    def remark(self, measurement: Measurement) -> str | None:
        """What a launch that tells enough lets fear of others; None for nothing."""
        is_safe = measurement.effective >= SAFE * LEAST_FOR_P99
        if not self.needs_p99 or is_safe or not measurement.has_p99:
            return None
        seconds = tails.seconds_for(
            SAFE * LEAST_FOR_P99, effective=measurement.effective, seconds=measurement.seconds
        )
        return (
            f"the default's p99 rests on {measurement.effective:,.0f} effective requests: configurations "
            f"that answer less often may fall under {LEAST_FOR_P99}, and are measured for longer then; "
            f"--seconds {seconds:g} would leave room"
        )

    def tells_objectives(self, measurement: Measurement) -> bool:
        """Whether the launch tells what is made best, whatever else it does not tell."""
        values = [named(name).value(measurement) for name in self.names]
        return all(math.isfinite(value) and value > 0 for value in values)

    def told(self, measurement: Measurement) -> Outcome:
        """ok, or why the launch does not tell what is needed, whatever its figures are."""
        if self.needs_p99 and not measurement.has_p99:
            return Outcome(status="failed", cause="short", reason=tails.too_few(measurement))
        if "goodput" in self.names and not measurement.goodput:
            reason = (
                f"none of {measurement.requests} answers came within the deadline (--slo-ms; half of them took "
                f"more than {measurement.p50_ms:.3g} ms): give a longer one, or less load"
            )
            return Outcome(status="infeasible", cause="constraint", reason=reason)
        wanted = {name: named(name).value(measurement) for name in self.names}
        wanted |= {limit.metric: limit.of.value(measurement) for limit in self.limits}
        for name, value in wanted.items():
            if not math.isfinite(value):
                reason = f"its {name} is not known: this server or machine does not tell it"
                return Outcome(status="failed", cause="errors", reason=reason)
        return OK

    def outcome(self, measurement: Measurement) -> Outcome:
        """The same, or infeasible with cause `constraint` and by how much a limit is missed."""
        outcome = self.told(measurement)
        why = missed(self.limits, [measurement])
        if outcome.status != "ok" or why is None:
            return outcome
        return Outcome(status="infeasible", cause="constraint", reason=why)
