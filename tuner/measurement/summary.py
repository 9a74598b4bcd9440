"""Summary of one phase's request records as a `Measurement`.

A closed loop counts requests that *finish* in the measured part, so latencies, throughput and
Little's law agree. A stall at the end shows in the Little's-law error, not in p99.

An open loop counts requests that were *due* in the measured part, with latency from the due time
(coordinated omission, Tene 2013), but throughput counts responses within it.

All statuses but 2xx are errors, except for allowed rejections. Little's law counts all finished
requests.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import LoadGeneratorFailed
from tuner.measurement import blocks, percentiles
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import LATE_S, HostNoise, Measurement
from tuner.values.request_records import CpuTimeSeries, RequestRecords

_ROUNDING_S = 1e-9


def is_ok(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each request (n,) got status 2xx."""
    return (records.status >= 200) & (records.status < 300)


def is_measured(
    records: RequestRecords, *, warmup_s: float, seconds: float, is_open: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each request (n,) finished (open loop: was due) in the measured part."""
    at_s = records.intended_s if is_open else records.finished_s
    return (at_s > warmup_s) & (at_s <= warmup_s + seconds + _ROUNDING_S)


def is_answered(
    records: RequestRecords, *, warmup_s: float, seconds: float, is_open: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each request (n,) is measured and got status 2xx."""
    measured = is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    return measured & is_ok(records)


def littles_law_error(throughput_per_s: float, mean_s: float, concurrency: int) -> float:
    """Return |throughput x mean / concurrency - 1| for finished requests of any status.

    Little's law: requests in flight = throughput x mean latency (Operations Research 9:383, 1961).
    A large error in a closed loop means too few requests in flight, or too short a phase.
    """
    return abs(throughput_per_s * mean_s / concurrency - 1)


def summarise(
    records: RequestRecords,
    *,
    concurrency: int | None,
    warmup_s: float,
    seconds: float,
    block_s: float = 0.5,
    noise: HostNoise,
    client_batch: int = 1,
    deadline_ms: float | None = None,
    rate_per_s: float | None = None,
    refusals: Collection[int] = (),
    client_cpu: CpuTimeSeries | None = None,
) -> Measurement:
    """Summarise the measured part of a phase.

    `warmup_s` and `seconds` are `PhaseResult.warmup_end_s` and `measured_s`. `concurrency` is None
    in an open loop. Goodput needs a `deadline_ms`. `refusals` are statuses that are not errors.

    Raises:
        LoadGeneratorFailed: no request succeeded in the measured part.
    """
    is_open = concurrency is None
    measured = is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    answered = measured & is_ok(records)
    count = int(np.count_nonzero(answered))
    if not count or seconds <= 0:
        why = nothing_measured(records, measured, seconds)
        raise LoadGeneratorFailed(f"nothing measured: {why}")
    took_s = records.finished_s - records.intended_s
    at_s = (records.intended_s if is_open else records.finished_s)[answered]
    in_turn = np.argsort(at_s, kind="stable")
    latencies = _latency_fields(
        at_s[in_turn], took_s[answered][in_turn], warmup_s, seconds, block_s, client_cpu
    )
    parts = latencies["blocks"]
    block_s = parts[0].seconds if parts else seconds
    finished = int(np.count_nonzero(measured))
    refused = int(np.count_nonzero(measured & np.isin(records.status, sorted(refusals))))
    little_error = None
    if concurrency is not None:
        mean_finished_s = float(took_s[measured].mean())
        little_error = littles_law_error(finished / seconds, mean_finished_s, concurrency)
    within = is_answered(records, warmup_s=warmup_s, seconds=seconds)
    late_s = (records.started_s - records.intended_s)[measured]
    return Measurement(
        requests=count,
        errors=finished - count - refused,
        refused=refused,
        seconds=seconds,
        **latencies,
        **_goodput_fields(records, within, deadline_ms, warmup_s, seconds, block_s),
        throughput_per_s=int(np.count_nonzero(within)) / seconds,
        little_error=little_error,
        warmup_s=warmup_s,
        noise=noise,
        client_batch=client_batch,
        rate_per_s=rate_per_s,
        late_share=float(np.mean(late_s > LATE_S)) if is_open else None,
    )


def _goodput_fields(
    records: RequestRecords,
    within: NDArray[np.bool_],
    deadline_ms: float | None,
    warmup_s: float,
    seconds: float,
    block_s: float,
) -> dict[str, Any]:
    if deadline_ms is None:
        return {}
    took_ms = 1e3 * (records.finished_s - records.intended_s)
    at_s = records.finished_s[within & (took_ms <= deadline_ms)]
    rate = len(at_s) / seconds
    count = math.floor(seconds / block_s + 1e-6)
    counts, _ = np.histogram(at_s, bins=warmup_s + block_s * np.arange(count + 1))
    ends = blocks.ratio_interval(np.full(count, block_s), counts.astype(float), rate)
    return {"goodput": rate, "goodput_interval": ends}


def nothing_measured(
    records: RequestRecords,
    measured: np.ndarray[tuple[int], np.dtype[np.bool_]],
    seconds: float,
    *,
    is_open: bool = False,
) -> str:
    """Explain why nothing could be measured."""
    finished = int(np.count_nonzero(measured))
    if finished:
        return f"all {finished} requests in {seconds:g} s failed: {statuses(records, measured)}"
    if not len(records):
        return "no request was sent"
    if is_open:
        return (
            f"no request was due in the measured {seconds:g} s ({len(records)} before "
            "them, in the warm-up); measure for longer (--seconds), or use a higher rate"
        )
    max_s = float((records.finished_s - records.intended_s).max())
    return (
        f"no request finished in the measured {seconds:g} s (the longest latency was "
        f"{max_s:.3g} s); measure for longer (--seconds)"
    )


def statuses(records: RequestRecords, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    """Count the chosen requests that failed, by status: «12 x status 503, 3 x no response»."""
    found, counts = np.unique(records.status[chosen & ~is_ok(records)], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return ", ".join(
        f"{counts[place]} x " + (f"status {found[place]}" if found[place] else "no response")
        for place in order
    )


def _latency_fields(
    at_s: NDArray[np.float64],
    took_s: NDArray[np.float64],
    warmup_s: float,
    seconds: float,
    block_s: float,
    client_cpu: CpuTimeSeries | None,
) -> dict[str, Any]:
    ordered_s = np.sort(took_s)
    mean_s = float(ordered_s.mean())
    parts = blocks.cut(
        at_s,
        took_s,
        start_s=warmup_s,
        seconds=seconds,
        block_s=blocks.block_seconds(block_s, mean_s),
        client_cpu=client_cpu,
    )
    mean_ms = 1e3 * mean_s
    spread_ms = max(blocks.FINEST_MS, 1e3 * percentiles.spread(ordered_s))
    found: dict[str, Any] = {
        "blocks": parts,
        "mean_ms": mean_ms,
        "mean_interval": blocks.mean_interval(parts, mean_ms),
        "spread_ms": spread_ms,
        "spread_interval": blocks.spread_interval(parts, spread_ms),
        "histogram": LatencyHistogram.of(1e3 * ordered_s),
    }
    alike = blocks.part_of(at_s, start_s=warmup_s, seconds=seconds, mean_s=mean_s)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        value_s = percentiles.percentile(ordered_s, share)
        effective = len(took_s) / blocks.design_effect(took_s > value_s, alike)
        found[f"{name}_ms"] = 1e3 * value_s
        found[f"{name}_interval"] = percentiles.interval(
            1e3 * ordered_s, share, effective=effective
        )
    return {**found, "p99_effective": effective}
