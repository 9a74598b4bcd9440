"""Summary of one phase's request records as a `Measurement`.

A closed loop counts requests that *finish* in the measured part: at a steady load as many reach in
as out, so latencies, throughput and Little's law agree. Requests in flight at the end count
nowhere; a stall at the end shows in the Little's-law error, not in p99.

An open loop counts requests that were *due* in the measured part, with latency from the due time:
waiting for a connection is included (coordinated omission, Tene 2013). Throughput is still what was
answered within the part.

All but 2xx are errors, redirects too, except for allowed rejections. Little's law counts everything
that finished.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tuner.errors import LoadGeneratorFailed
from tuner.measurement import blocks, effective_sample_size, percentiles
from tuner.measurement.littles_law import littles_law_error
from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import LATE_S, HostNoise, Measurement
from tuner.values.request_records import CpuTimeSeries, RequestRecords

SHARES = (0.5, 0.95, 0.99)
_ROUNDING_S = 1e-9
"""The last request of a counted phase finishes exactly at its end."""


def is_ok(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return (n,) whether each request got status 2xx."""
    return (records.status >= 200) & (records.status < 300)


def is_measured(
    records: RequestRecords, *, warmup_s: float, seconds: float, is_open: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return (n,) whether each request finished (open loop: was due) in the measured part."""
    at_s = records.intended_s if is_open else records.finished_s
    return (at_s > warmup_s) & (at_s <= warmup_s + seconds + _ROUNDING_S)


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

    `warmup_s` and `seconds` are `LoadResult.warmup_end_s` and `measured_s`. `concurrency` is None
    in an open loop, `rate_per_s` its mean rate. Blocks are longer than `block_s` if latencies are
    long. Goodput needs a `deadline_ms`. `refusals` are statuses that count as rejections, not
    errors.

    Raises:
        LoadFailed: no request was answered in the measured part.
    """
    is_open = concurrency is None
    measured = is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    answered = measured & is_ok(records)
    count = int(np.count_nonzero(answered))
    if not count or seconds <= 0:
        raise LoadGeneratorFailed(
            f"nothing measured: {nothing_measured(records, measured, seconds)}"
        )
    took_s = records.finished_s - records.intended_s
    ordered = np.sort(took_s[answered])
    mean_s = float(ordered.mean())
    at_s = records.intended_s if is_open else records.finished_s
    in_turn = np.argsort(at_s[answered], kind="stable")
    alike = effective_sample_size.part_of(
        at_s[answered], start_s=warmup_s, seconds=seconds, mean_s=mean_s
    )
    parts = blocks.cut(
        at_s[answered][in_turn],
        took_s[answered][in_turn],
        start_s=warmup_s,
        seconds=seconds,
        block_s=blocks.block_seconds(block_s, mean_s),
        client_cpu=client_cpu,
    )
    spread_ms = max(blocks.FINEST_MS, 1e3 * percentiles.spread(ordered))
    found = {share: _Percentile.of(took_s[answered], ordered, alike, share) for share in SHARES}
    finished = int(np.count_nonzero(measured))
    refused = int(np.count_nonzero(measured & np.isin(records.status, sorted(refusals))))
    block_s = parts[0].seconds if parts else seconds
    good = _good(records, warmup_s, seconds, deadline_ms=deadline_ms, block_s=block_s)
    return Measurement(
        requests=count,
        errors=finished - count - refused,
        refused=refused,
        seconds=seconds,
        mean_ms=1e3 * mean_s,
        mean_interval=blocks.mean_interval(parts, 1e3 * mean_s),
        p50_ms=found[0.5].value_ms,
        p50_interval=found[0.5].interval,
        p95_ms=found[0.95].value_ms,
        p95_interval=found[0.95].interval,
        p99_ms=found[0.99].value_ms,
        p99_interval=found[0.99].interval,
        p99_effective=found[0.99].effective,
        histogram=LatencyHistogram.of(1e3 * ordered),
        goodput=None if good is None else good[0],
        goodput_interval=UNKNOWN if good is None else good[1],
        throughput_per_s=_answered_within(records, warmup_s, seconds) / seconds,
        little_error=None
        if concurrency is None
        else littles_law_error(finished / seconds, float(took_s[measured].mean()), concurrency),
        warmup_s=warmup_s,
        blocks=parts,
        noise=noise,
        client_batch=client_batch,
        spread_ms=spread_ms,
        spread_interval=blocks.spread_interval(parts, spread_ms),
        rate_per_s=rate_per_s,
        late_share=float(np.mean(_late_s(records)[measured] > LATE_S)) if is_open else None,
    )


def _late_s(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return (n,) how long after its due time each request was sent."""
    return records.started_s - records.intended_s


def _answered_within(records: RequestRecords, warmup_s: float, seconds: float) -> int:
    """Return the number of 2xx responses in the measured part, whenever due."""
    finished = is_measured(records, warmup_s=warmup_s, seconds=seconds)
    return int(np.count_nonzero(finished & is_ok(records)))


def _good(
    records: RequestRecords,
    warmup_s: float,
    seconds: float,
    *,
    deadline_ms: float | None,
    block_s: float,
) -> tuple[float, Interval] | None:
    """Return responses per second within the deadline; None without one."""
    if deadline_ms is None:
        return None
    took_ms = 1e3 * (records.finished_s - records.intended_s)
    chosen = is_measured(records, warmup_s=warmup_s, seconds=seconds) & is_ok(records)
    at_s = records.finished_s[chosen & (took_ms <= deadline_ms)]
    rate = len(at_s) / seconds
    count = math.floor(seconds / block_s + 1e-6)
    counts, _ = np.histogram(at_s, bins=warmup_s + block_s * np.arange(count + 1))
    ends = blocks.ratio_interval(np.full(count, block_s), counts.astype(float), rate)
    return rate, ends


def nothing_measured(
    records: RequestRecords,
    measured: np.ndarray[tuple[int], np.dtype[np.bool_]],
    seconds: float,
    *,
    is_open: bool = False,
) -> str:
    """Return why nothing could be measured."""
    finished = int(np.count_nonzero(measured))
    if finished:
        return f"all {finished} requests in {seconds:g} s failed: {statuses(records, measured)}"
    if not len(records):
        return "no request was sent"
    if is_open:
        return (
            f"no request was due in the measured {seconds:g} s ({len(records)} before them, in the warm-up): measure "
            "for longer (--seconds), or ask more often"
        )
    longest_s = float((records.finished_s - records.intended_s).max())
    return (
        f"no request finished in the measured {seconds:g} s (the longest round trip took "
        f"{longest_s:.3g} s); measure for longer (--seconds)"
    )


def statuses(records: RequestRecords, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    """Count failed chosen requests by status: «12 x status 503, 3 x no answer»."""
    found, counts = np.unique(records.status[chosen & ~is_ok(records)], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return ", ".join(
        f"{counts[place]} x " + (f"status {found[place]}" if found[place] else "no answer")
        for place in order
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Percentile:
    """One percentile of the measured part."""

    value_ms: float
    interval: Interval
    effective: float
    """Independent requests behind it."""

    @classmethod
    def of(
        cls,
        took_s: NDArray[np.float64],
        ordered_s: NDArray[np.float64],
        parts: NDArray[np.intp],
        share: float,
    ) -> Self:
        value_s = percentiles.percentile(ordered_s, share)
        worth = len(took_s) / effective_sample_size.design_effect(took_s > value_s, parts)
        ends = percentiles.interval(1e3 * ordered_s, share, effective=worth)
        return cls(1e3 * value_s, ends, worth)
