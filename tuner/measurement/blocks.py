"""Cuts a measured phase into blocks, and takes the mean's interval from them.

In: when requests finished and how long they took, in seconds. Out: `Block`s and a 95 % interval of
the mean.

Requests that follow one another are alike (they share queues, batches, quota periods), so an
interval that takes them as independent is too narrow. Means of blocks that are long against a round
trip are nearly independent (batch means: Schmeiser 1982, Operations Research 30:556, who finds 10
to 30 batches enough). A block is a whole number of 0.1 s, the period of CPU quotas; it is
lengthened until it spans two mean round trips.

Blocks of one launch say nothing of the spread between launches, which is often larger: this
interval tells how well the phase measured *its launch*. `noise` and `comparison` deal in launches.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tuner.measurement import percentiles
from tuner.settings import QUOTA_PERIOD_S
from tuner.values import UNKNOWN, Block, CpuCourse, Interval

LEAST_BLOCKS = 4
"""Fewer blocks give no interval: the spread of three values is hardly known."""
MOST_BATCHES = 20
"""More blocks are put together, which leaves them less alike."""
LEAST_ROUND_TRIPS = 2
LEAST_FOR_SPREAD = 20
"""Fewest requests of a block from which p5 and p95 are others than its extremes."""
FINEST_MS = 1e-6
"""Resolution of the clock: a smaller spread is not told from this one."""


def block_seconds(block_s: float, mean_s: float) -> float:
    """Length of a block: `block_s` in whole quota periods, times what spans two mean round trips."""
    periods = max(1, round(block_s / QUOTA_PERIOD_S))
    whole_s = periods * QUOTA_PERIOD_S
    return whole_s * max(1, math.ceil(LEAST_ROUND_TRIPS * mean_s / whole_s - 1e-9))


def cut(
    finished_s: NDArray[np.float64],
    took_s: NDArray[np.float64],
    *,
    start_s: float,
    seconds: float,
    block_s: float,
    client_cpu: CpuCourse | None = None,
) -> tuple[Block, ...]:
    """Whole blocks from `start_s` on; what remains at the end belongs to none.

    Args:
        finished_s: (n,) when each request was answered, ascending.
        took_s: (n,) its round trip.
        start_s: end of the warm-up.
        seconds: length of the measured part.
        block_s: length of a block, from `block_seconds`.
        client_cpu: of the load generator; None: not known.

    Returns:
        The blocks in which a request was answered; others have no mean and are left out.
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
                if len(ordered) >= LEAST_FOR_SPREAD
                else None,
                client_cpu_s=None if used_s is None else float(used_s[number]),
            )
        )
    return tuple(blocks)


def mean_interval(blocks: tuple[Block, ...], mean_ms: float) -> Interval:
    """95 % interval of the launch's mean, around the mean of the whole phase; ends None under 4 blocks."""
    counts = np.array([block.requests for block in blocks], dtype=float)
    return ratio_interval(counts, counts * np.array([block.mean_ms for block in blocks]), mean_ms)


def ratio_interval(
    counts: NDArray[np.float64], sums: NDArray[np.float64], ratio: float
) -> Interval:
    """95 % interval of what one request takes, around that of the whole phase; ends None under 4 blocks,
    or where they took nothing.

    The blocks' requests differ in number, so this is the interval of a ratio, sum over number of requests
    (Cochran, Sampling Techniques, section 6.3), on the log scale, with Student's t.

    Args:
        counts: (n,) requests of each block.
        sums: (n,) what they took together.
        ratio: sum over number of requests of the whole phase.
    """
    if len(counts) < LEAST_BLOCKS or not sums.sum():
        return UNKNOWN
    size = math.ceil(len(counts) / MOST_BATCHES)
    batches = len(counts) // size
    counts = counts[: batches * size].reshape(batches, size).sum(axis=1)
    sums = sums[: batches * size].reshape(batches, size).sum(axis=1)
    residuals = sums - counts * sums.sum() / counts.sum()
    error = math.sqrt(batches / (batches - 1) * float(residuals @ residuals)) / float(sums.sum())
    reach = math.exp(float(special.stdtrit(batches - 1, 0.975)) * error)
    return Interval(low=ratio / reach, high=ratio * reach)


def spread_interval(blocks: tuple[Block, ...], spread_ms: float) -> Interval:
    """95 % interval of the launch's spread, around that of the whole phase, from its blocks' spreads.

    Student's t on the log scale, as for the mean. Ends None under 4 blocks, or where a block has too
    few requests for a spread of its own.
    """
    spreads = [block.spread_ms for block in blocks]
    known = [max(FINEST_MS, spread) for spread in spreads if spread is not None]
    if len(known) < LEAST_BLOCKS or len(known) < len(spreads):
        return UNKNOWN
    size = math.ceil(len(known) / MOST_BATCHES)
    batches = len(known) // size
    logs = np.log(known[: batches * size]).reshape(batches, size).mean(axis=1)
    error = float(logs.std(ddof=1)) / math.sqrt(batches)
    reach = math.exp(float(special.stdtrit(batches - 1, 0.975)) * error)
    return Interval(low=spread_ms / reach, high=spread_ms * reach)
