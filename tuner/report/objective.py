"""What a study improves, as reports show it: words, unit, direction, value in a measurement.

A sampler minimises; a reader of a throughput study wants requests per second. So reports read the
value from the measurement and never show a negated number.
"""

from __future__ import annotations

import dataclasses

from tuner.values import Interval, Measurement, Trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective."""

    name: str
    label: str
    unit: str
    is_minimised: bool

    @property
    def axis(self) -> str:
        """Axis title."""
        return f"{self.label} ({self.unit})"

    def value(self, measurement: Measurement) -> float:
        """The objective of one launch, in `unit`."""
        if self.name == "throughput":
            return measurement.throughput_per_s
        value: float = getattr(measurement, f"{self.name}_ms")
        return value

    def interval(self, measurement: Measurement) -> Interval:
        """Its 95 % interval; the throughput's is the mean's, turned over (it is N / mean)."""
        if self.name != "throughput":
            ends: Interval = getattr(measurement, f"{self.name}_interval")
            return ends
        turned = measurement.throughput_per_s * measurement.mean_ms
        low, high = measurement.mean_interval.low, measurement.mean_interval.high
        return Interval(low=turned / high if high else None, high=turned / low if low else None)

    def of(self, trial: Trial) -> float | None:
        """The objective of a trial; None unless it was ok."""
        return None if trial.measurement is None else self.value(trial.measurement)

    def better(self, first: float, second: float) -> float:
        """The better of two values."""
        return min(first, second) if self.is_minimised else max(first, second)


OBJECTIVES = {
    "mean": Objective(name="mean", label="mean round trip", unit="ms", is_minimised=True),
    "p50": Objective(name="p50", label="median round trip", unit="ms", is_minimised=True),
    "p95": Objective(name="p95", label="p95 round trip", unit="ms", is_minimised=True),
    "p99": Objective(name="p99", label="p99 round trip", unit="ms", is_minimised=True),
    "throughput": Objective(
        name="throughput", label="throughput", unit="requests/s", is_minimised=False
    ),
}


def named(name: str) -> Objective:
    """The objective of that name.

    Raises:
        ValueError: none of that name; the record is broken.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r} is not one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
