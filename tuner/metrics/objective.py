"""Objectives: their label, unit, direction, and value in a measurement."""

from __future__ import annotations

import dataclasses
import math

from serving.error_text import nearest
from tuner.errors import UsageError
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.trial import Trial
from tuner.values.verdict import VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """Metric that a study optimises."""

    name: str
    label: str
    unit: str
    field: str
    is_minimised: bool = True

    @property
    def axis(self) -> str:
        """Title of a chart axis."""
        return f"{self.label} ({self.unit})"

    def value(self, measurement: Measurement) -> float:
        """Return the objective of one evaluation in `unit`, or NaN if unknown."""
        value: float = getattr(measurement, self.field)
        return value

    def to_minimise(self, measurement: Measurement) -> float:
        """Return a positive value for a sampler to minimise: in ms, J, or the unit of a cost.

        Throughput and goodput become the mean time between two responses.
        """
        value = self.value(measurement)
        return value if self.is_minimised else 1e3 / value

    def from_minimised(self, value: float) -> float:
        """Return the objective for a value that `to_minimise` returned."""
        return value if self.is_minimised else 1e3 / value

    def interval(self, measurement: Measurement) -> Interval:
        """Return the 95 % interval; throughput, time per item and costs use that of the mean."""
        low, high = measurement.mean_interval.low, measurement.mean_interval.high
        if self.name == "throughput":
            turned = measurement.throughput_per_s * measurement.mean_ms
            return Interval(low=turned / high if high else None, high=turned / low if low else None)
        if self.name in OF_MEAN:
            share = self.value(measurement) / measurement.mean_ms
            if not math.isfinite(share) or measurement.rate_per_s is not None:
                return UNKNOWN  # in an open loop the schedule sets the rate
            return Interval(low=low and share * low, high=high and share * high)
        if self.name == "rate" or (self.name == "p99" and not measurement.has_p99):
            return UNKNOWN
        field = self.field.removeprefix("reportable_").removesuffix("_per_s").removesuffix("_ms")
        field = field.removesuffix("_j")
        ends: Interval = getattr(measurement, f"{field}_interval")
        return ends

    def of(self, trial: Trial) -> float | None:
        """Return the objective of a trial, or None if the trial failed or the value is unknown."""
        value = math.nan if trial.measurement is None else self.value(trial.measurement)
        return value if math.isfinite(value) else None

    def judge(self, interval: Interval) -> VerdictOutcome:
        """Return what the interval of a ratio (first over second) shows about the first."""
        assert interval.low is not None
        assert interval.high is not None
        if interval.low <= 1 <= interval.high:
            return "no difference shown"
        return "worse" if (interval.low > 1) == self.is_minimised else "better"

    def better(self, first: float, second: float) -> float:
        """Return the better of two values."""
        return min(first, second) if self.is_minimised else max(first, second)


OBJECTIVES = {
    one.name: one
    for one in (
        Objective("mean", "mean latency", "ms", "mean_ms"),
        Objective("p50", "median latency", "ms", "p50_ms"),
        Objective("p95", "p95 latency", "ms", "p95_ms"),
        Objective("p99", "p99 latency", "ms", "reportable_p99_ms"),
        Objective("throughput", "throughput", "requests/s", "throughput_per_s", is_minimised=False),
        Objective("time-per-item", "time per item", "ms", "time_per_item_ms"),
        Objective("consistency", "spread (p95 - p5) of latencies", "ms", "spread_ms"),
        Objective(
            "rate",
            "highest rate within the limit",
            "requests/s",
            "max_rate_per_s",
            is_minimised=False,
        ),
        Objective(
            "goodput",
            "responses within the deadline",
            "requests/s",
            "goodput_per_s",
            is_minimised=False,
        ),
        Objective("cost", "cost", "per 1,000 requests", "price"),
        Objective("cpu", "CPU held", "core-s per 1,000 requests", "cpu_s"),
        Objective("memory", "memory held", "MiB-s per 1,000 requests", "memory_mib_s"),
        Objective("energy", "energy per request", "J/request", "energy_j"),
    )
}
NAMES = tuple(OBJECTIVES)
COSTS = frozenset({"cost", "cpu", "memory"})
OF_SERVER = COSTS | {"energy"}
"""Objectives that are of the server's processes, which the load cannot see."""
OF_MEAN = COSTS | {"time-per-item"}
"""Objectives proportional to mean latency if allocated resources are the same."""


def parse_names(text: str) -> str:
    """Parse the name of one objective, or of two separated by a comma, or raise ValueError."""
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in OBJECTIVES:
            raise ValueError(f"{text}: {_unknown_text(name)}")
    if len(names) > 2 or len(set(names)) < len(names):
        raise ValueError(f"{text}: expected one objective, or two different ones, as mean,cost")
    return ",".join(names)


def find_objective(name: str) -> Objective:
    """Return the objective of this name, or raise UsageError."""
    if name not in OBJECTIVES:
        raise UsageError(_unknown_text(name))
    return OBJECTIVES[name]


def _unknown_text(name: str) -> str:
    known = ", ".join(NAMES)
    return f"objective {name!r} is not known{nearest(name, NAMES)} (objectives: {known})"
