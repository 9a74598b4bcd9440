"""Whether a phase counts as a measurement of its configuration, as a value.

In: records of a phase. Out: an `Outcome`, and the `Measurement` if it is ok. A failed trial is data
for the sampler and not an exception; this is where errors under load become one.
"""

from __future__ import annotations

import numpy as np

from tuner.measurement import summary
from tuner.settings import rate_in_words
from tuner.values import OK, HostNoise, Measurement, Outcome, RequestRecords

MOST_ERROR_SHARE = 0.01
"""A configuration that fails more than one request in a hundred does not serve this load. Errors
are often quicker than answers, so that a phase with many of them would look fast."""
OF_OVERLOAD = frozenset({0, 429, 503, 504})
"""Statuses by which a server that is asked for too much answers: not at all, or with a refusal."""


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
    rate_per_s: float | None = None,
    fell_behind: float = 0.0,
) -> tuple[Outcome, Measurement | None]:
    """Judge and summarise the measured part of a phase; arguments as for `summary.summarise`, and
    the share of requests that may fail (`most_error_share`), what is known of the cause of
    failed ones, on one line (`why_failed`), and by which share of the requests that were due the server
    fell behind (`LoadResult.fell_behind`).

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
    failed = int(np.count_nonzero(measured & ~summary.is_ok(records)))
    because = f"; {why_failed}" if why_failed and failed else ""
    refused = int(np.count_nonzero(measured & np.isin(records.status, sorted(OF_OVERLOAD))))
    if concurrency is None and failed > most_error_share * finished and 2 * refused > failed:
        why = f"{failed} of {finished} failed: {summary.statuses(records, measured)}{because}"
        return overloaded(rate_per_s, why), None
    if not finished or failed == finished:
        reason = summary.nothing_measured(records, measured, seconds) + because
        return Outcome(
            status="failed", cause="errors" if finished else "timeout", reason=reason
        ), None
    if failed > most_error_share * finished:
        reason = (
            f"{failed} of {finished} requests ({100 * failed / finished:.1f} %) failed: "
            f"{summary.statuses(records, measured)}{because}"
        )
        return Outcome(status="failed", cause="errors", reason=reason), None
    measurement = summary.summarise(
        records,
        concurrency=concurrency,
        warmup_s=warmup_s,
        seconds=seconds,
        block_s=block_s,
        noise=noise,
        client_batch=client_batch,
        rate_per_s=rate_per_s,
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


def limit_outcome(measurement: Measurement, slo_ms: float | None) -> Outcome:
    """ok, or infeasible with cause `constraint` and by how much the limit on p99 is missed."""
    if slo_ms is None or measurement.p99_ms <= slo_ms:
        return OK
    reason = f"p99 of {measurement.p99_ms:.4g} ms is above the limit of {slo_ms:g} ms (--slo-ms)"
    return Outcome(status="infeasible", cause="constraint", reason=reason)
