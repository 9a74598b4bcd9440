"""Energy per request under load, with a 95 % interval from its blocks.

Counters cover whole devices, including other work and idle power.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.measurement import blocks
from tuner.values.measurement import Block, Energy

MIN_READINGS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Counter readings of one phase."""

    at_s: NDArray[np.float64]  # (n,) monotonic clock, ascending
    joules: Mapping[str, NDArray[np.float64]]  # (n,) by source, cumulative
    clock_mhz: NDArray[np.float64] | None = None  # (n,) of the GPU, NaN where not reported

    def between(self, source: str, start_s: float, end_s: float) -> float:
        """Return a source's joules in an interval, interpolated linearly."""
        ends = np.interp((start_s, end_s), self.at_s, self.joules[source])
        return float(ends[1] - ends[0])


def energy_of(
    trace: Trace, parts: tuple[Block, ...], *, origin_s: float, start_s: float, seconds: float,
    requests: int,
) -> Energy | None:  # fmt: skip
    """Return the energy of the measured part of a phase.

    Block times and `start_s`, the end of the warm-up, count from the first send, at monotonic time
    `origin_s`. None without requests or energy, or if the trace does not cover the part.
    """
    begin_s, end_s = origin_s + start_s, origin_s + start_s + seconds
    is_covered = len(trace.at_s) >= MIN_READINGS and not (
        trace.at_s[0] > begin_s or trace.at_s[-1] < end_s
    )
    if not trace.joules or not is_covered or not requests:
        return None
    sources = {name: trace.between(name, begin_s, end_s) / requests for name in trace.joules}
    per_request_j = sum(sources.values())
    if per_request_j <= 0:
        return None
    used_j = [
        sum(
            trace.between(name, origin_s + part.start_s, origin_s + part.start_s + part.seconds)
            for name in trace.joules
        )
        for part in parts
    ]
    counts = np.array([part.requests for part in parts], dtype=float)
    return Energy(
        per_request_j=per_request_j,
        interval=blocks.ratio_interval(counts, np.array(used_j), per_request_j),
        sources=sources,
        power_w=per_request_j * requests / seconds,
        clock_mhz=_mean_clock(trace, begin_s, end_s),
    )


def _mean_clock(trace: Trace, begin_s: float, end_s: float) -> float | None:
    if trace.clock_mhz is None:
        return None
    inside = trace.clock_mhz[(trace.at_s >= begin_s) & (trace.at_s <= end_s)]
    told = inside[np.isfinite(inside)]
    return float(told.mean()) if len(told) else None
