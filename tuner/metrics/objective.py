"""Objectives: label, unit, direction, and their value in a measurement."""

from __future__ import annotations

import dataclasses
import math

from serving.error_text import nearest
from tuner.errors import UsageError
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.trial import Trial
from tuner.values.verdict import VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective."""

    name: str
    label: str
    unit: str
    is_minimised: bool
    field: str

    @property
    def axis(self) -> str:
        """Axis title."""
        return f"{self.label} ({self.unit})"

    def value(self, measurement: Measurement) -> float:
        """Objective of one evaluation, in `unit`; NaN if unknown."""
        value: float = getattr(measurement, self.field)
        return value

    def to_minimise(self, measurement: Measurement) -> float:
        """Positive value that a sampler minimises.

        In ms; energy in J, costs in their own unit. Throughput and goodput become the mean time
        between two responses.
        """
        value = self.value(measurement)
        return value if self.is_minimised else 1e3 / value

    def from_minimised(self, value: float) -> float:
        """Invert `to_minimise`, in `unit`."""
        return value if self.is_minimised else 1e3 / value

    def interval(self, measurement: Measurement) -> Interval:
        """Its 95 % interval, for throughput, time per item and costs from the mean's."""
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
        """Objective of a trial; None unless it is ok and known."""
        value = math.nan if trial.measurement is None else self.value(trial.measurement)
        return value if math.isfinite(value) else None

    def judge(self, interval: Interval) -> VerdictOutcome:
        """What the interval of a ratio, first over second, shows of the first."""
        assert interval.low is not None
        assert interval.high is not None
        if interval.low <= 1 <= interval.high:
            return "no difference shown"
        return "worse" if (interval.low > 1) == self.is_minimised else "better"

    def better(self, first: float, second: float) -> float:
        """Better of two values."""
        return min(first, second) if self.is_minimised else max(first, second)


OBJECTIVES = {
    "mean": Objective(
        name="mean", label="mean round trip", unit="ms", is_minimised=True, field="mean_ms"
    ),
    "p50": Objective(
        name="p50", label="median round trip", unit="ms", is_minimised=True, field="p50_ms"
    ),
    "p95": Objective(
        name="p95", label="p95 round trip", unit="ms", is_minimised=True, field="p95_ms"
    ),
    "p99": Objective(
        name="p99", label="p99 round trip", unit="ms", is_minimised=True, field="reportable_p99_ms"
    ),
    "throughput": Objective(
        name="throughput",
        label="throughput",
        unit="requests/s",
        is_minimised=False,
        field="throughput_per_s",
    ),
    "time-per-item": Objective(
        name="time-per-item",
        label="time per item",
        unit="ms",
        is_minimised=True,
        field="time_per_item_ms",
    ),
    "consistency": Objective(
        name="consistency",
        label="spread (p95 - p5) of round trips",
        unit="ms",
        is_minimised=True,
        field="spread_ms",
    ),
    "rate": Objective(
        name="rate",
        label="highest rate within the limit",
        unit="requests/s",
        is_minimised=False,
        field="max_rate_per_s",
    ),
    "goodput": Objective(
        name="goodput",
        label="answers within the deadline",
        unit="requests/s",
        is_minimised=False,
        field="goodput_per_s",
    ),
    "cost": Objective(
        name="cost",
        label="cost",
        unit="per 1,000 requests",
        is_minimised=True,
        field="price",
    ),
    "cpu": Objective(
        name="cpu",
        label="CPU held",
        unit="core-s per 1,000 requests",
        is_minimised=True,
        field="cpu_s",
    ),
    "memory": Objective(
        name="memory",
        label="memory held",
        unit="MiB-s per 1,000 requests",
        is_minimised=True,
        field="memory_mib_s",
    ),
    "energy": Objective(
        name="energy",
        label="energy per request",
        unit="J/request",
        is_minimised=True,
        field="energy_j",
    ),
}
NAMES = tuple(OBJECTIVES)
COSTS = frozenset({"cost", "cpu", "memory"})
OF_MEAN = COSTS | {"time-per-item"}
"""Objectives proportional to the mean latency for the same allocated resources."""


def parse_names(text: str) -> str:
    """Parse one objective's name, or two with a comma.

    Raises:
        ValueError: an unknown one (with the nearest), more than two, or one twice.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in OBJECTIVES:
            raise ValueError(
                f"{text}: objective {name!r} is not known{nearest(name, NAMES)} "
                f"(objectives: {', '.join(NAMES)})"
            )
    if len(names) > 2 or len(set(names)) < len(names):
        raise ValueError(f"{text}: expected one objective, or two different ones, as mean,cost")
    return ",".join(names)


def find_objective(name: str) -> Objective:
    """Objective of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in OBJECTIVES:
        raise UsageError(
            f"objective {name!r} is not known{nearest(name, NAMES)} "
            f"(objectives: {', '.join(NAMES)})"
        )
    return OBJECTIVES[name]
