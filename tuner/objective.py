"""What a study improves: words, unit, direction, and the value in a measurement, for people and for
samplers.

A sampler minimises; a reader of a throughput study wants requests per second. So every value that
people see is read from the measurement, in the objective's own unit, and only a sampler's is turned
over. In: an objective's name. Out: an `Objective`. Pure; the only place where objectives are
listed.
"""

from __future__ import annotations

import dataclasses
import math

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.values import UNKNOWN, Interval, Measurement, Trial, VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective."""

    name: str
    label: str
    unit: str
    is_minimised: bool
    field: str
    """Of a `Measurement`."""

    @property
    def axis(self) -> str:
        """Axis title."""
        return f"{self.label} ({self.unit})"

    def value(self, measurement: Measurement) -> float:
        """The objective of one launch, in `unit`; NaN where the launch cannot tell it."""
        value: float = getattr(measurement, self.field)
        return value

    def to_minimise(self, measurement: Measurement) -> float:
        """The value that a sampler minimises, positive, so that its logarithm can be taken.

        In ms; of energy in J, of costs in their own unit.
        For throughput and goodput it is the mean time between two answers.
        """
        value = self.value(measurement)
        return value if self.is_minimised else 1e3 / value

    def from_minimised(self, value: float) -> float:
        """Inverse of `to_minimise`, in `unit`."""
        return value if self.is_minimised else 1e3 / value

    def interval(self, measurement: Measurement) -> Interval:
        """Its 95 % interval.

        The throughput's is the mean's, turned over (it is N / mean), and the time per item's is the
        mean's to another scale (it is mean / (N x client batch)), and so are those of costs.
        """
        low, high = measurement.mean_interval.low, measurement.mean_interval.high
        if self.name == "throughput":
            turned = measurement.throughput_per_s * measurement.mean_ms
            return Interval(low=turned / high if high else None, high=turned / low if low else None)
        if self.name in OF_MEAN:
            share = self.value(measurement) / measurement.mean_ms
            if not math.isfinite(share) or measurement.rate_per_s is not None:
                return (
                    UNKNOWN  # in an open loop the schedule says how many requests come in a second
                )
            return Interval(low=low and share * low, high=high and share * high)
        if self.name == "rate" or (self.name == "p99" and not measurement.has_p99):
            return UNKNOWN
        field = self.field.removeprefix("told_").removesuffix("_per_s").removesuffix("_ms")
        field = field.removesuffix("_j")
        ends: Interval = getattr(measurement, f"{field}_interval")
        return ends

    def of(self, trial: Trial) -> float | None:
        """The objective of a trial; None unless it was ok and tells it."""
        value = math.nan if trial.measurement is None else self.value(trial.measurement)
        return value if math.isfinite(value) else None

    def judged(self, interval: Interval) -> VerdictOutcome:
        """What the interval of a ratio, first over second, shows of the first."""
        assert interval.low is not None
        assert interval.high is not None
        if interval.low <= 1 <= interval.high:
            return "no difference shown"
        return "worse" if (interval.low > 1) == self.is_minimised else "better"

    def better(self, first: float, second: float) -> float:
        """The better of two values."""
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
        name="p99", label="p99 round trip", unit="ms", is_minimised=True, field="told_p99_ms"
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
        field="highest_per_s",
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
"""Objectives that are the mean round trip to another scale, as long as what is held stays the same."""


def checked(text: str) -> str:
    """One objective's name, or two with a comma between them.

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


def named(name: str) -> Objective:
    """The objective of that name.

    Raises:
        WrongUse: there is none.
    """
    if name not in OBJECTIVES:
        raise WrongUse(
            f"objective {name!r} is not known{nearest(name, NAMES)} "
            f"(objectives: {', '.join(NAMES)})"
        )
    return OBJECTIVES[name]
