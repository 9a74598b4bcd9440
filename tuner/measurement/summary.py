"""From the records of one phase to a `Measurement`.

In: records of every request (seconds since the phase's first send), the end of the warm-up, the
length of the measured part. Out: latencies in ms with intervals, throughput, errors, blocks.

Which requests count: those that *finish* in the measured part, first to last byte of it. At a
steady load as many requests reach in over its beginning as reach out over its end, so latencies,
throughput and Little's law agree, and no kind of request is preferred. Requests still in flight at
the end are on record but in no figure; a server that stalls at the end therefore shows in the
Little's-law error, not in p99.

An open loop does not wait for answers, so a server that falls behind is asked on. There the requests
that count are those that were *due* in the measured part, to the last one, and a latency is counted
from that second: the wait for a free connection is part of it (coordinated omission, Tene 2013).
Throughput is still what was answered within the measured part.

Latencies, throughput and `requests` are of answers with status 2xx; everything else is an error
(redirects too, they are not followed). Little's law counts all that finished, as they all kept a
connection busy.
"""

from __future__ import annotations

import numpy as np

from tuner.errors import LoadFailed
from tuner.measurement import blocks, percentiles
from tuner.measurement.little import little_error
from tuner.values import LATE_S, HostNoise, Interval, Measurement, RequestRecords

_ROUNDING_S = 1e-9
"""The last request of a counted phase finishes exactly at its end."""


def is_ok(records: RequestRecords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) whether each request was answered with a status 2xx."""
    return (records.status >= 200) & (records.status < 300)


def is_measured(
    records: RequestRecords, *, warmup_s: float, seconds: float, is_open: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) whether each request finished in the measured part; in an open loop, was due in it."""
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
    rate_per_s: float | None = None,
) -> Measurement:
    """Summarise the measured part of a phase.

    Args:
        records: of the whole phase.
        concurrency: requests that were kept in flight; None in an open loop.
        warmup_s: when the warm-up ended (`LoadResult.warmup_end_s`).
        seconds: length of the measured part (`LoadResult.measured_s`).
        block_s: wished length of a block; longer ones are taken where round trips are long.
        noise: what else happened on the machine.
        client_batch: items in each request.
        rate_per_s: mean rate of an open loop.

    Raises:
        LoadFailed: no request was answered in the measured part, so that there is nothing to tell.
    """
    is_open = concurrency is None
    measured = is_measured(records, warmup_s=warmup_s, seconds=seconds, is_open=is_open)
    answered = measured & is_ok(records)
    count = int(np.count_nonzero(answered))
    if not count or seconds <= 0:
        raise LoadFailed(f"nothing measured: {nothing_measured(records, measured, seconds)}")
    took_s = records.finished_s - records.intended_s
    ordered = np.sort(took_s[answered])
    mean_s = float(ordered.mean())
    at_s = records.intended_s if is_open else records.finished_s
    in_turn = np.argsort(at_s[answered], kind="stable")
    parts = blocks.cut(
        at_s[answered][in_turn],
        took_s[answered][in_turn],
        start_s=warmup_s,
        seconds=seconds,
        block_s=blocks.block_seconds(block_s, mean_s),
    )
    spread_ms = max(blocks.FINEST_MS, 1e3 * percentiles.spread(ordered))
    per_share = {share: _in_ms(ordered, share) for share in (0.5, 0.95, 0.99)}
    finished = int(np.count_nonzero(measured))
    return Measurement(
        requests=count,
        errors=finished - count,
        seconds=seconds,
        mean_ms=1e3 * mean_s,
        mean_interval=blocks.mean_interval(parts, 1e3 * mean_s),
        p50_ms=per_share[0.5][0],
        p50_interval=per_share[0.5][1],
        p95_ms=per_share[0.95][0],
        p95_interval=per_share[0.95][1],
        p99_ms=per_share[0.99][0],
        p99_interval=per_share[0.99][1],
        throughput_per_s=_answered_within(records, warmup_s, seconds) / seconds,
        little_error=None
        if concurrency is None
        else little_error(finished / seconds, float(took_s[measured].mean()), concurrency),
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
    """(n,) how long after it was due each request was sent."""
    return records.started_s - records.intended_s


def _answered_within(records: RequestRecords, warmup_s: float, seconds: float) -> int:
    """Answers with 2xx that came in the measured part, whenever they were due."""
    finished = is_measured(records, warmup_s=warmup_s, seconds=seconds)
    return int(np.count_nonzero(finished & is_ok(records)))


def nothing_measured(
    records: RequestRecords,
    measured: np.ndarray[tuple[int], np.dtype[np.bool_]],
    seconds: float,
) -> str:
    """Why there is no figure: no request finished in time, or none of them well."""
    finished = int(np.count_nonzero(measured))
    if finished:
        return f"all {finished} requests in {seconds:g} s failed: {statuses(records, measured)}"
    if not len(records):
        return "no request was sent"
    longest_s = float((records.finished_s - records.intended_s).max())
    return (
        f"no request finished in the measured {seconds:g} s (the longest round trip took "
        f"{longest_s:.3g} s); measure for longer"
    )


def statuses(records: RequestRecords, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    """Failed requests among the chosen by status, most frequent first: «12 x status 503, 3 x no answer»."""
    found, counts = np.unique(records.status[chosen & ~is_ok(records)], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return ", ".join(
        f"{counts[place]} x " + (f"status {found[place]}" if found[place] else "no answer")
        for place in order
    )


def _in_ms(
    ordered_s: np.ndarray[tuple[int], np.dtype[np.float64]], share: float
) -> tuple[float, Interval]:
    ordered = 1e3 * ordered_s
    return percentiles.percentile(ordered, share), percentiles.interval(ordered, share)
