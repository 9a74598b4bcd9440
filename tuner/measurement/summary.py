"""Summary of one phase's request records as a `Measurement`.

A closed loop counts requests that *finish* in the measured part, so latencies, throughput and
Little's law agree. A stall at the end shows in the Little's-law error, not in p99.

An open loop counts requests that were *due* in the measured part, with latency from the due time
(coordinated omission, Tene 2013). Throughput is still what was answered within the part.

All but 2xx are errors, except for allowed rejections. Little's law counts everything that finished.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tuner.errors import LoadGeneratorFailed
from tuner.measurement import blocks, effective_sample_size, percentiles
from tuner.measurement.littles_law import littles_law_error
from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import LATE_S, Block, HostNoise, Measurement
from tuner.values.request_records import CpuTimeSeries, RequestRecords

SHARES = (0.5, 0.95, 0.99)
_ROUNDING_S = 1e-9


def is_ok(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) whether each request got status 2xx."""
    return (records.status >= 200) & (records.status < 300)


def is_measured(
    records: RequestRecords, *, warmup_s: float, seconds: float, is_open: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) whether each request finished (open loop: was due) in the measured part."""
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

    `warmup_s` and `seconds` are `PhaseResult.warmup_end_s` and `measured_s`. `concurrency` is None
    in an open loop. Goodput needs a `deadline_ms`. `refusals` are statuses that are no errors.

    Raises:
        LoadGeneratorFailed: no request was answered in the measured part.
    """
    is_open = concurrency is None
    measured = is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    answered = measured & is_ok(records)
    count = int(np.count_nonzero(answered))
    if not count or seconds <= 0:
        why = nothing_measured(records, measured, seconds)
        raise LoadGeneratorFailed(f"nothing measured: {why}")
    took_s = records.finished_s - records.intended_s
    at_s = records.intended_s if is_open else records.finished_s
    latencies = _Latencies(at_s[answered], took_s[answered], warmup_s, seconds)
    parts = latencies.blocks(block_s, client_cpu)
    finished = int(np.count_nonzero(measured))
    refused = int(np.count_nonzero(measured & np.isin(records.status, sorted(refusals))))
    block_s = parts[0].seconds if parts else seconds
    little_error = None
    if concurrency is not None:
        mean_finished_s = float(took_s[measured].mean())
        little_error = littles_law_error(finished / seconds, mean_finished_s, concurrency)
    good, good_interval = _goodput(
        records, warmup_s, seconds, deadline_ms=deadline_ms, block_s=block_s
    )
    return Measurement(
        requests=count,
        errors=finished - count - refused,
        refused=refused,
        seconds=seconds,
        **latencies.fields(parts),
        goodput=good,
        goodput_interval=good_interval,
        throughput_per_s=_answered_within(records, warmup_s, seconds) / seconds,
        little_error=little_error,
        warmup_s=warmup_s,
        noise=noise,
        client_batch=client_batch,
        rate_per_s=rate_per_s,
        late_share=float(np.mean(_late_s(records)[measured] > LATE_S)) if is_open else None,
    )


def _late_s(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return records.started_s - records.intended_s


def _answered_within(records: RequestRecords, warmup_s: float, seconds: float) -> int:
    finished = is_measured(records, warmup_s=warmup_s, seconds=seconds)
    return int(np.count_nonzero(finished & is_ok(records)))


def _goodput(
    records: RequestRecords,
    warmup_s: float,
    seconds: float,
    *,
    deadline_ms: float | None,
    block_s: float,
) -> tuple[float | None, Interval]:
    if deadline_ms is None:
        return None, UNKNOWN
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
    """Why nothing could be measured."""
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
    """Count failed chosen requests by status: «12 x status 503, 3 x no answer»."""
    found, counts = np.unique(records.status[chosen & ~is_ok(records)], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return ", ".join(
        f"{counts[place]} x " + (f"status {found[place]}" if found[place] else "no answer")
        for place in order
    )


class _Latencies:
    def __init__(
        self,
        at_s: NDArray[np.float64],
        took_s: NDArray[np.float64],
        warmup_s: float,
        seconds: float,
    ) -> None:
        self._at_s, self._took_s = at_s, took_s
        self._warmup_s, self._seconds = warmup_s, seconds
        self.ordered_s = np.sort(took_s)
        self.mean_s = float(self.ordered_s.mean())

    def blocks(self, block_s: float, client_cpu: CpuTimeSeries | None) -> tuple[Block, ...]:
        """Blocks, longer than `block_s` for long latencies."""
        in_turn = np.argsort(self._at_s, kind="stable")
        return blocks.cut(
            self._at_s[in_turn],
            self._took_s[in_turn],
            start_s=self._warmup_s,
            seconds=self._seconds,
            block_s=blocks.block_seconds(block_s, self.mean_s),
            client_cpu=client_cpu,
        )

    def fields(self, parts: tuple[Block, ...]) -> dict[str, Any]:
        """Fields of a `Measurement` about latencies."""
        mean_ms = 1e3 * self.mean_s
        spread_ms = max(blocks.FINEST_MS, 1e3 * percentiles.spread(self.ordered_s))
        found = self._percentiles()
        return {
            "blocks": parts,
            "mean_ms": mean_ms,
            "mean_interval": blocks.mean_interval(parts, mean_ms),
            "p50_ms": found[0.5].value_ms,
            "p50_interval": found[0.5].interval,
            "p95_ms": found[0.95].value_ms,
            "p95_interval": found[0.95].interval,
            "p99_ms": found[0.99].value_ms,
            "p99_interval": found[0.99].interval,
            "p99_effective": found[0.99].effective,
            "spread_ms": spread_ms,
            "spread_interval": blocks.spread_interval(parts, spread_ms),
            "histogram": LatencyHistogram.of(1e3 * self.ordered_s),
        }

    def _percentiles(self) -> dict[float, _Percentile]:
        alike = effective_sample_size.part_of(
            self._at_s, start_s=self._warmup_s, seconds=self._seconds, mean_s=self.mean_s
        )
        return {
            share: _Percentile.of(self._took_s, self.ordered_s, alike, share) for share in SHARES
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Percentile:
    value_ms: float
    interval: Interval
    effective: float

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
