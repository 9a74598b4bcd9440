"""Blocks of a measured phase, intervals from their means, and effective numbers of requests.

Consecutive requests are alike; means of long blocks are nearly independent (batch means: Schmeiser
1982, Operations Research 30:556; 10 to 30 suffice). A block is a multiple of 0.1 s, the CPU quota
period, and spans at least two mean latencies.

For a percentile, n requests are worth only n / design effect independent ones, with

    design effect = Var(share above) / (p (1 - p) / n)

The variance is that of a ratio estimator over parts of the phase, and yields Kish's design effect
(Survey Sampling, 1965, section 8.2). The binomial interval is Korn and Graubard's (Survey
Methodology 24:193, 1998).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.measurement import percentiles
from tuner.settings.measurement import QUOTA_PERIOD_S
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Block
from tuner.values.request_records import CpuTimeSeries

MIN_BLOCKS = 4
MAX_BATCHES = 20
MIN_LATENCIES = 2
MIN_FOR_SPREAD = 20
"""Minimum number of requests per block at which p5 and p95 differ from the extremes."""
FINEST_MS = 1e-6
MAX_PARTS = 20
MIN_PARTS = 5
"""Number of parts below which each part counts as one request."""


def block_seconds(block_s: float, mean_s: float) -> float:
    """Return `block_s` in whole quota periods, lengthened to span two mean latencies."""
    periods = max(1, round(block_s / QUOTA_PERIOD_S))
    whole_s = periods * QUOTA_PERIOD_S
    return whole_s * max(1, math.ceil(MIN_LATENCIES * mean_s / whole_s - 1e-9))


def cut(
    finished_s: NDArray[np.float64],
    took_s: NDArray[np.float64],
    *,
    start_s: float,
    seconds: float,
    block_s: float,
    client_cpu: CpuTimeSeries | None = None,
) -> tuple[Block, ...]:
    """Cut the measured part, which begins at `start_s`, into whole blocks; drop the remainder.

    `finished_s` (n,) is ascending; `took_s` (n,) are the latencies; `block_s` comes from
    `block_seconds`. Empty blocks are left out.
    """
    count = math.floor(seconds / block_s + 1e-6)
    edges_s = start_s + block_s * np.arange(count + 1, dtype=np.float64)
    edges = np.searchsorted(finished_s, edges_s, side="right")
    used_s = None if client_cpu is None else client_cpu.between(edges_s)
    blocks = []
    for number, (first, last) in enumerate(itertools.pairwise(edges)):
        if first == last:
            continue
        ordered = np.sort(took_s[first:last])
        blocks.append(
            Block(
                start_s=start_s + number * block_s,
                seconds=block_s,
                requests=int(last - first),
                mean_ms=1e3 * float(ordered.mean()),
                p50_ms=1e3 * percentiles.percentile(ordered, 0.5),
                p99_ms=1e3 * percentiles.percentile(ordered, 0.99),
                throughput_per_s=float(last - first) / block_s,
                spread_ms=1e3 * percentiles.spread(ordered)
                if len(ordered) >= MIN_FOR_SPREAD
                else None,
                client_cpu_s=None if used_s is None else float(used_s[number]),
            )
        )
    return tuple(blocks)


def mean_interval(blocks: tuple[Block, ...], mean_ms: float) -> Interval:
    """Return a 95 % interval for the evaluation's mean; unknown for fewer than 4 blocks."""
    counts = np.array([block.requests for block in blocks], dtype=float)
    return ratio_interval(counts, counts * np.array([block.mean_ms for block in blocks]), mean_ms)


def ratio_interval(
    counts: NDArray[np.float64], sums: NDArray[np.float64], ratio: float
) -> Interval:
    """Return a 95 % interval for a sum per request; unknown for fewer than 4 blocks or a sum of 0.

    As `counts` (n,) differ, it is that of a ratio estimator (Cochran, Sampling Techniques, section
    6.3), on the log scale with Student's t, around the phase's `ratio`.
    """
    if len(counts) < MIN_BLOCKS or not sums.sum():
        return UNKNOWN
    counts, sums = _batches(counts).sum(axis=1), _batches(sums).sum(axis=1)
    batches = len(counts)
    residuals = sums - counts * sums.sum() / counts.sum()
    error = math.sqrt(batches / (batches - 1) * float(residuals @ residuals)) / float(sums.sum())
    reach = math.exp(float(special.stdtrit(batches - 1, 0.975)) * error)
    return Interval(low=ratio / reach, high=ratio * reach)


def _batches(values: NDArray[np.float64]) -> NDArray[np.float64]:
    size = math.ceil(len(values) / MAX_BATCHES)
    count = len(values) // size
    return values[: count * size].reshape(count, size)


def spread_interval(blocks: tuple[Block, ...], spread_ms: float) -> Interval:
    """Return a 95 % interval for the evaluation's spread, from its blocks' spreads.

    It uses Student's t on the log scale; unknown for fewer than 4 blocks, or if one has too few
    requests.
    """
    spreads = [block.spread_ms for block in blocks]
    known = [max(FINEST_MS, spread) for spread in spreads if spread is not None]
    if len(known) < MIN_BLOCKS or len(known) < len(spreads):
        return UNKNOWN
    logs = _batches(np.log(known)).mean(axis=1)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = math.exp(float(special.stdtrit(len(logs) - 1, 0.975)) * error)
    return Interval(low=spread_ms / reach, high=spread_ms * reach)


def part_of(
    at_s: NDArray[np.float64], *, start_s: float, seconds: float, mean_s: float
) -> NDArray[np.intp]:
    """Return the number (n,) of each request's part of the phase.

    `at_s` (n,) are the times at which requests count; `start_s` ends the warm-up.
    """
    shortest_s = block_seconds(QUOTA_PERIOD_S, mean_s)
    each_s = shortest_s * max(1, math.ceil(seconds / (MAX_PARTS * shortest_s) - 1e-9))
    count = max(1, math.floor(seconds / each_s + 1e-6))
    # A remainder at the end belongs to the last part.
    return np.clip(((at_s - start_s) // each_s).astype(np.intp), 0, count - 1)


def design_effect(is_above: NDArray[np.bool_], parts: NDArray[np.intp]) -> float:
    """Return the design effect, at least 1, for the share of requests above a percentile.

    `parts` (n,) numbers the requests' parts of the phase.
    """
    counts = np.bincount(parts).astype(float)
    above = np.bincount(parts, weights=is_above, minlength=len(counts))
    counts, above = counts[counts > 0], above[counts > 0]
    size, total = float(counts.sum()), float(above.sum())
    if len(counts) < MIN_PARTS:
        return size / len(counts)
    share = total / size
    if not 0 < share < 1:
        return 1.0
    residuals = above - share * counts
    spread = len(counts) / (len(counts) - 1) * float(residuals @ residuals)
    return min(size, max(1.0, spread / (size * share * (1 - share))))
