"""Raw request records as a report needs them: round trips without the warm-up, thinned.

A round trip counts from the intended start, so that a client that falls behind cannot hide it. The
records of a phase hold its warm-up; where it ends is found from the measurement of the same phase
(the one whose number of requests fits). Thinning keeps the tail: quantiles are taken densely near
1, and the slowest requests are all kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from tuner.report import reading
from tuner.values import Measurement, StudyRecord

Array = NDArray[np.float64]

FIT = 0.02
"""Largest difference, as a share, between the counts of a measurement and of its records."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Answered requests of one phase."""

    finished_s: Array  # (n,) since the start of the phase, ascending
    round_trip_ms: Array  # (n,)
    errors: int
    warmup_s: float | None
    """End of the warm-up; None where it is not known, and then nothing is cut."""

    @property
    def measured_ms(self) -> Array:
        """Round trips after the warm-up, (m,)."""
        if self.warmup_s is None:
            return self.round_trip_ms
        return self.round_trip_ms[self.finished_s >= self.warmup_s]


def phase(study: StudyRecord, role: reading.Role) -> Phase | None:
    """The phase that was kept for a role; None if none was, or if no request in it was answered."""
    records = study.records.get(role)
    if records is None:
        return None
    is_answered = (records.status >= 200) & (records.status < 300)
    if not is_answered.any():
        return None
    order = np.argsort(records.finished_s[is_answered], kind="stable")
    finished_s = records.finished_s[is_answered][order]
    round_trip_ms = (finished_s - records.intended_s[is_answered][order]) * 1000
    return Phase(
        finished_s=finished_s,
        round_trip_ms=round_trip_ms,
        errors=int((~is_answered).sum()),
        warmup_s=_warmup_s(finished_s, _candidates(study, role)),
    )


def quantile_curve(values: Array, *, points: int = 200) -> tuple[Array, Array]:
    """(values, shares) of the empirical distribution at no more than about twice `points` shares.

    Half of the shares are even, half dense towards 1; the largest, 1 - 1/(2n), is the slowest.
    """
    count = len(values)
    last = 1 - 0.5 / count
    even = np.linspace(0, 1, points)
    tail = 1 - np.logspace(-0.3, np.log10(0.5 / count), points)
    shares = np.unique(np.clip(np.concatenate((even, tail)), 0, last))
    return np.quantile(values, shares), shares


def binned_median(phase: Phase, *, bins: int = 60) -> tuple[Array, Array]:
    """(middle of the bin in s, median round trip in ms); bins are whole multiples of 0.1 s."""
    span = max(float(phase.finished_s[-1]), 0.1)
    width = 0.1 * max(1, int(np.ceil(span / bins / 0.1)))
    index = np.floor(phase.finished_s / width).astype(int)
    used = np.unique(index)
    medians = [float(np.median(phase.round_trip_ms[index == each])) for each in used]
    return (used + 0.5) * width, np.asarray(medians)


def thinned(phase: Phase, *, limit: int = 1200) -> NDArray[np.intp]:
    """Indices of at most `limit` requests: the slowest hundredth, of the rest an even sample."""
    count = len(phase.finished_s)
    if count <= limit:
        return np.arange(count)
    slow = min(limit // 2, max(1, count // 100))
    order = np.argsort(phase.round_trip_ms, kind="stable")
    rest = np.sort(order[:-slow])
    even = rest[np.linspace(0, len(rest) - 1, limit - slow).astype(int)]
    return np.sort(np.concatenate((order[-slow:], even)))


def _candidates(study: StudyRecord, role: reading.Role) -> tuple[Measurement, ...]:
    wanted = reading.configuration_of(study, role)
    from_trials = tuple(
        trial.measurement
        for trial in study.trials
        if trial.measurement is not None and trial.configuration == wanted
    )
    return reading.launches(study, role).measurements + from_trials


def _warmup_s(finished_s: Array, candidates: tuple[Measurement, ...]) -> float | None:
    best: tuple[float, float] | None = None
    for measurement in candidates:
        start, end = measurement.warmup_s, measurement.warmup_s + measurement.seconds
        inside = int(np.searchsorted(finished_s, end) - np.searchsorted(finished_s, start))
        misfit = abs(inside - measurement.requests) / max(1, measurement.requests)
        if misfit <= FIT and (best is None or misfit < best[0]):
            best = (misfit, start)
    return None if best is None else best[1]
