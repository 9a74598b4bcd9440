"""What is made best, and what must hold: the objective and the latency limit.

In: a `Measurement`. Out: a positive number to minimise, in ms; whether p99 is under the limit.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.settings import OBJECTIVES
from tuner.values import OK, Measurement, Outcome

_VALUES: dict[str, Callable[[Measurement], float]] = {
    "mean": lambda measurement: measurement.mean_ms,
    "p50": lambda measurement: measurement.p50_ms,
    "p95": lambda measurement: measurement.p95_ms,
    "p99": lambda measurement: measurement.p99_ms,
    # The mean time between two answers: positive and in ms like the others, so that samplers can
    # take its logarithm.
    "throughput": lambda measurement: 1e3 / measurement.throughput_per_s,
}
LABELS = {
    "mean": "mean round trip",
    "p50": "median round trip",
    "p95": "p95 of the round trip",
    "p99": "p99 of the round trip",
    "throughput": "throughput",
}
"""For sentences."""


def to_minimise(measurement: Measurement, objective: str) -> float:
    """The value that a sampler minimises: ms of a latency, or for throughput ms between two answers.

    Raises:
        WrongUse: no such objective.
    """
    _check(objective)
    return _VALUES[objective](measurement)


def as_shown(measurement: Measurement, objective: str) -> float:
    """The value as people read it: ms of a latency, or requests per second.

    Raises:
        WrongUse: no such objective.
    """
    _check(objective)
    if objective == "throughput":
        return measurement.throughput_per_s
    return _VALUES[objective](measurement)


def meets_limit(measurement: Measurement, slo_ms: float | None) -> bool:
    """Whether the measured p99 is at most the limit; always without one."""
    return slo_ms is None or measurement.p99_ms <= slo_ms


def limit_outcome(measurement: Measurement, slo_ms: float | None) -> Outcome:
    """ok, or infeasible with cause `constraint` and by how much the limit is missed."""
    if slo_ms is None or meets_limit(measurement, slo_ms):
        return OK
    reason = f"p99 of {measurement.p99_ms:.4g} ms is above the limit of {slo_ms:g} ms"
    return Outcome(status="infeasible", cause="constraint", reason=reason)


def _check(objective: str) -> None:
    if objective not in OBJECTIVES:
        raise WrongUse(
            f"objective {objective!r} is not known{nearest(objective, OBJECTIVES)} "
            f"(objectives: {', '.join(OBJECTIVES)})"
        )
