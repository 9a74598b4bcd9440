"""Parts of an evaluation: its start, phases and result."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import numpy as np

from tuner.launching.replica_facts import ReplicaFacts
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan
from tuner.measurement import summary
from tuner.values.configuration import Configuration
from tuner.values.measurement import HostNoise, Measurement
from tuner.values.request_records import RequestRecords
from tuner.values.trial import Outcome


class Startup(NamedTuple):
    """Start time of an evaluation, and the seconds until the engine was ready."""

    started_at: float
    startup_s: float


class Stopwatch:
    """Stopwatch for a startup, running from its construction."""

    def __init__(self) -> None:
        self._started_at, self._begin_s = time.time(), time.monotonic()

    def startup(self) -> Startup:
        """Return the startup as measured so far."""
        return Startup(self._started_at, time.monotonic() - self._begin_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Result of one evaluation."""

    configuration: Configuration
    outcome: Outcome
    measurement: Measurement | None
    """Measurement if the outcome is ok; metric constraints are not checked here."""
    records: RequestRecords | None
    """Records of all requests, or None if no phase ran."""
    startup_s: float
    loaded_s: float
    """Duration of warm-up and measured part; 0 if no phase completed."""
    started_at: float
    node: str = ""
    """Name of the machine; empty: this one."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency of each time slice, 0 for an omitted slice; empty without time slices."""

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        startup: Startup,
        outcome: Outcome,
        found: JudgedPhase | None = None,
    ) -> Evaluation:
        """Return the evaluation of the phase `found`, or a failed evaluation if it is None."""
        return cls(
            configuration=configuration,
            outcome=outcome,
            measurement=None if found is None else found.measurement,
            records=None if found is None else found.load.records,
            startup_s=startup.startup_s,
            loaded_s=0.0 if found is None else found.loaded_s,
            started_at=startup.started_at,
            slices_ms=() if found is None else found.slices_ms,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedPhase:
    """Phase with its outcome and measurement."""

    load: PhaseResult
    outcome: Outcome
    measurement: Measurement | None
    loaded_s: float
    slices_ms: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedPhase:
    """Result of a load phase, with the state of the replicas before and after it."""

    before: ReplicaFacts
    load: PhaseResult
    after: ReplicaFacts
    gateway_cpu_s: float | None
    """CPU time of the engine without its replicas, or None if unreadable."""
    replica_cpu_s: float | None
    """CPU time of the replicas, or None if unreadable."""

    @property
    def answered(self) -> int:
        """Number of measured 2xx responses."""
        return int(is_answered(self.load).sum())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeSlice:
    """Result of one time slice on a running engine."""

    plan: PhasePlan
    load: PhaseResult
    noise: HostNoise
    before: ReplicaFacts
    after: ReplicaFacts
    repeats: int = 0
    """Number of earlier tries, all of which other processes disturbed."""
    is_disturbed: bool = False


def is_answered(load: PhaseResult) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each request of a phase was measured with a 2xx status, (n,)."""
    return summary.is_answered(load.records, warmup_s=load.warmup_end_s, seconds=load.measured_s)


def difference(after: float | None, before: float | None) -> float | None:
    """Return the growth of a counter, or None if a reading is unknown."""
    return None if after is None or before is None else after - before
