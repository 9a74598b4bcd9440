"""Raw request records for a report: the measured latencies, thinned except for the tail.

They belong to answered requests that finished (in an open loop: were due) in the measured part of
the phase (docs/measurement.md). The measurement with a matching number of requests locates that
part.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from tuner.report.study import study_view
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord

Array = NDArray[np.float64]

ROUNDING_S = 1e-9
FIT = 0.02


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseRequests:
    """Answered requests of one phase."""

    at_s: Array  # (n,) since the start, ascending: when it finished, in an open loop was due
    latency_ms: Array  # (n,)
    errors: int
    warmup_s: float | None
    """End of the warm-up; None if unknown, in which case nothing is cut."""

    @property
    def measured_ms(self) -> Array:
        """Latencies (m,) after the warm-up."""
        if self.warmup_s is None:
            return self.latency_ms
        return self.latency_ms[self.at_s > self.warmup_s]


def phase(study: StudyRecord, arm: study_view.ArmName) -> PhaseRequests | None:
    """Return an arm's phase up to the end of its measured part, or None if nothing was answered."""
    records = study.records.get(arm)
    if records is None:
        return None
    at_s = records.intended_s if study.is_open else records.finished_s
    order = np.argsort(at_s, kind="stable")
    at_s, status = at_s[order], records.status[order]
    latency_ms = (records.finished_s[order] - records.intended_s[order]) * 1000
    is_answered = (status >= 200) & (status < 300)
    if not is_answered.any():
        return None
    verified = study_view.arm_measurements(study, arm).measurements
    candidates = verified + study_view.search_measurements(study, arm)
    part = _measured_part(at_s[is_answered], candidates)
    start_s, end_s = (-np.inf, np.inf) if part is None else part
    is_shown = is_answered & (at_s <= end_s)
    return PhaseRequests(
        at_s=at_s[is_shown],
        latency_ms=latency_ms[is_shown],
        errors=int((~is_answered & (at_s > start_s) & (at_s <= end_s)).sum()),
        warmup_s=None if part is None else start_s,
    )


def quantile_curve(values: Array, *, points: int = 200) -> tuple[Array, Array]:
    """Return (values, shares) of the distribution, at most about twice `points`.

    Half of the shares are even, half dense towards 1; the last, 1 - 1/(2n), is the slowest request.
    """
    count = len(values)
    last = 1 - 0.5 / count
    even = np.linspace(0, 1, points)
    tail = 1 - np.logspace(-0.3, np.log10(0.5 / count), points)
    shares = np.unique(np.clip(np.concatenate((even, tail)), 0, last))
    return np.quantile(values, shares), shares


def binned_median(phase: PhaseRequests, *, bins: int = 60) -> tuple[Array, Array]:
    """Return (bin centres in s, medians in ms); bins are multiples of 0.1 s."""
    span = max(float(phase.at_s[-1]), 0.1)
    width = 0.1 * max(1, int(np.ceil(span / bins / 0.1)))
    index = np.floor(phase.at_s / width).astype(int)
    used = np.unique(index)
    medians = [float(np.median(phase.latency_ms[index == each])) for each in used]
    return (used + 0.5) * width, np.asarray(medians)


def thin(phase: PhaseRequests, *, limit: int = 1200) -> NDArray[np.intp]:
    """Return at most `limit` indices: the slowest hundredth, and an even sample of the rest."""
    count = len(phase.at_s)
    if count <= limit:
        return np.arange(count)
    slow = min(limit // 2, max(1, count // 100))
    order = np.argsort(phase.latency_ms, kind="stable")
    rest = np.sort(order[:-slow])
    even = rest[np.linspace(0, len(rest) - 1, limit - slow).astype(int)]
    return np.sort(np.concatenate((order[-slow:], even)))


def _measured_part(at_s: Array, candidates: tuple[Measurement, ...]) -> tuple[float, float] | None:
    best: tuple[float, tuple[float, float]] | None = None
    for measurement in candidates:
        start = measurement.warmup_s
        end = start + measurement.seconds + ROUNDING_S
        inside = np.diff(np.searchsorted(at_s, (start, end), side="right")).item()
        misfit = abs(inside - measurement.requests) / max(1, measurement.requests)
        if misfit <= FIT and (best is None or misfit < best[0]):
            best = (misfit, (start, end))
    return None if best is None else best[1]
