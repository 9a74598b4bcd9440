"""Metric constraints such as `p99_ms <= 50`.

The distance from the bound is logarithmic (`log_excess`), since noise grows with the value: 0.1 is
10 % beyond the bound, -0.1 is 10 % within it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Iterable, Sequence

from serving.error_text import nearest
from tuner.errors import UsageError, list_names
from tuner.metrics import tail_latency
from tuner.metrics.objective import OF_SERVER
from tuner.values.measurement import Measurement

MIN_VALUE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """Metric that can be constrained."""

    label: str
    unit: str
    field: str
    """Field of a `Measurement`; its value is NaN or None if unknown."""
    objective: str | None = None
    grows: int = 0
    """1 if the metric rises with mean latency, -1 if it falls, otherwise 0."""

    def value(self, measurement: Measurement) -> float:
        """Return the metric in one evaluation, or NaN if unknown."""
        found: float | None = operator.attrgetter(self.field)(measurement)
        return math.nan if found is None else float(found)

    @property
    def is_of_server(self) -> bool:
        """Whether it is of the server's processes, which the load cannot see."""
        return self.objective in OF_SERVER or self.field.startswith("noise.")

    def together(self, measurements: Sequence[Measurement]) -> float:
        """Combine evaluations: the p99 over all their requests, or the metric's geometric mean."""
        if self.field == "reportable_p99_ms":
            return tail_latency.pool_tails(measurements).value_ms
        values = [
            max(MIN_VALUE, value)
            for one in measurements
            if not math.isnan(value := self.value(one))
        ]
        if not values:
            return math.nan
        return math.exp(math.fsum(map(math.log, values)) / len(values))


METRICS = {
    "mean_ms": Metric("mean", "ms", "mean_ms", "mean", grows=1),
    "p50_ms": Metric("p50", "ms", "p50_ms", "p50", grows=1),
    "p95_ms": Metric("p95", "ms", "p95_ms", "p95", grows=1),
    "p99_ms": Metric("p99", "ms", "reportable_p99_ms", "p99", grows=1),
    "consistency_ms": Metric("p95 - p5", "ms", "spread_ms", "consistency", grows=1),
    "throughput_per_s": Metric(
        "throughput", "requests/s", "throughput_per_s", "throughput", grows=-1
    ),
    "items_per_s": Metric("throughput", "items/s", "items_per_s", "throughput", grows=-1),
    "time_per_item_ms": Metric("time per item", "ms", "time_per_item_ms", "time-per-item", grows=1),
    "goodput_per_s": Metric("goodput", "requests/s", "goodput_per_s", "goodput", grows=-1),
    "cpu_s_per_1000": Metric("CPU of 1,000 requests", "core-s", "cpu_s", "cpu"),
    "mib_s_per_1000": Metric("memory of 1,000 requests", "MiB-s", "memory_mib_s", "memory"),
    "cost_per_1000": Metric("cost of 1,000 requests", "", "price", "cost"),
    "energy_j": Metric("energy", "J/request", "energy_j", "energy"),
    "peak_memory_mb": Metric("largest memory of a replica", "MiB", "noise.peak_memory_mb"),
}
_FORM = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")
EXAMPLE = "'p99_ms <= 50'"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricConstraint:
    """Bound on one metric."""

    metric: str
    is_upper: bool
    bound: float
    """Bound in the metric's unit; it is positive."""
    option: str = "--constraint"

    @property
    def text(self) -> str:
        """Constraint as text that `parse` accepts."""
        return f"{self.metric} {'<=' if self.is_upper else '>='} {self.bound:.12g}"

    @property
    def of(self) -> Metric:
        """Metric that is bounded."""
        return METRICS[self.metric]

    def log_excess(self, value: float) -> float:
        """Return the log distance beyond the bound, which is negative within it."""
        beyond = math.log(max(MIN_VALUE, value) / self.bound) if not math.isnan(value) else math.nan
        return beyond if self.is_upper else -beyond

    def explain_violation(self, value: float) -> str | None:
        """Return a sentence about the violation, or None if the bound is kept."""
        if not self.log_excess(value) > 0:
            return None
        unit = f" {self.of.unit}" if self.of.unit else ""
        beyond = "above" if self.is_upper else "below"
        return (
            f"{self.of.label} of {value:.4g}{unit} is {beyond} the limit of {self.bound:g}{unit} "
            f"({self.option})"
        )


def parse(text: str) -> MetricConstraint:
    """Parse a constraint, or raise a ValueError that suggests the nearest metric."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a constraint; expected METRIC <= NUMBER, as {EXAMPLE}")
    metric, comparison, number = found.groups()
    if metric not in METRICS:
        raise ValueError(
            f"{text!r}: metric {metric!r} is not known{nearest(metric, METRICS)} "
            f"(metrics: {list_names(metric, METRICS)})"
        )
    try:
        bound = float(number)
    except ValueError:
        raise ValueError(f"{text!r}: {number!r} is not a number, as in {EXAMPLE}") from None
    if not 0 < bound < math.inf:
        raise ValueError(f"{text!r}: expected a number above 0, as in {EXAMPLE}")
    return MetricConstraint(metric=metric, is_upper=comparison.startswith("<"), bound=bound)


def canonical(text: str) -> str:
    """Return a constraint in canonical form, or raise as `parse` does."""
    return parse(text).text


def parse_all(texts: Iterable[str]) -> tuple[MetricConstraint, ...]:
    """Parse distinct constraints; raise UsageError if one is invalid or two contradict."""
    found: dict[str, MetricConstraint] = {}
    for text in texts:
        try:
            limit = parse(text)
        except ValueError as error:
            raise UsageError(f"--constraint {error}") from None
        found[limit.text] = limit
    for low in found.values():
        for high in found.values():
            is_pair = low.metric == high.metric and not low.is_upper and high.is_upper
            if is_pair and low.bound > high.bound:
                raise UsageError(
                    f"--constraint {low.text!r} and {high.text!r}: contradict each other"
                )
    return tuple(found.values())


def of_slo(slo_ms: float) -> MetricConstraint:
    """Return the constraint that `--slo-ms` stands for."""
    return MetricConstraint(metric="p99_ms", is_upper=True, bound=slo_ms, option="--slo-ms")


def find_violation(
    limits: Iterable[MetricConstraint], measurements: Sequence[Measurement]
) -> str | None:
    """Return a sentence about the first constraint that evaluations together violate, or None."""
    sentences = (limit.explain_violation(limit.of.together(measurements)) for limit in limits)
    return next(filter(None, sentences), None) if measurements else None
