"""Default against best, re-measured alternating on fresh launches: a ratio with an interval, and a verdict.

In: measurements of both, in pairs of launches that stood next to each other in time. Out: a
`Verdict`.

The ratio is best over default: the geometric mean of the pairs' ratios. Its 95 % interval is
Student's, on the pairs' log differences, so that a slow drift of the machine falls out of each
pair, and launches, not requests or blocks, are what is counted. The verdict is better or worse
where the interval leaves out 1: of two equal configurations one in twenty comparisons says so by
chance, one in forty that the best is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tuner import objective as objectives
from tuner.errors import WrongUse
from tuner.measurement.power import gain_from_differences
from tuner.objective import Objective
from tuner.values import Interval, Measurement, Verdict, VerdictOutcome

LEAST_PAIRS = 2
MOST_IN_PERCENT = 3.0
"""Above this ratio people say how many times as much."""


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, Interval]:
    """Geometric mean of paired ratios with its 95 % interval.

    Raises:
        WrongUse: fewer than two pairs, or unequal numbers.
    """
    if len(numerators) != len(denominators) or len(numerators) < LEAST_PAIRS:
        raise WrongUse(
            f"{len(denominators)} launches of the default and {len(numerators)} of the best configuration: "
            f"expected as many of each, at least {LEAST_PAIRS}"
        )
    differences = np.log(numerators) - np.log(denominators)
    mean, error = float(differences.mean()), _standard_error(differences)
    reach = float(special.stdtrit(len(differences) - 1, 0.975)) * error
    return math.exp(mean), Interval(low=math.exp(mean - reach), high=math.exp(mean + reach))


def compare(
    default: Sequence[Measurement], best: Sequence[Measurement], *, objective: str
) -> Verdict:
    """The verdict over pairs of launches: the first of one belongs to the first of the other.

    Args:
        default: measurements of the default configuration, one per launch.
        best: as many of the recommended one.
        objective: mean, p50, p95, p99 or throughput.

    Raises:
        WrongUse: fewer than two pairs, unequal numbers, or an unknown objective.
    """
    made_best = objectives.named(objective)
    ratio, interval = _ratio(default, best, made_best)
    throughput_ratio, throughput_interval = _ratio(default, best, objectives.named("throughput"))
    p99_ratio, p99_interval = _ratio(default, best, objectives.named("p99"))
    outcome = made_best.judged(interval)
    return Verdict(
        outcome=outcome,
        ratio=ratio,
        interval=interval,
        throughput_ratio=throughput_ratio,
        throughput_interval=throughput_interval,
        p99_ratio=p99_ratio,
        p99_interval=p99_interval,
        default=tuple(default),
        best=tuple(best),
        text=_sentence(default, best, made_best, outcome, ratio, interval),
    )


def _ratio(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> tuple[float, Interval]:
    return ratio_interval(list(map(objective.value, best)), list(map(objective.value, default)))


def _standard_error(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(differences.std(ddof=1)) / math.sqrt(len(differences))


def _sentence(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    objective: Objective,
    outcome: VerdictOutcome,
    ratio: float,
    interval: Interval,
) -> str:
    values = [list(map(objective.value, side)) for side in (best, default)]
    now, before = (
        f"{math.exp(float(np.log(value).mean())):.4g} {objective.unit}" for value in values
    )
    sides = f"{objective.label} {now} against {before} of the default"
    if interval.is_vague:
        return (
            f"No difference shown: {sides}; {len(best)} pairs of fresh launches, as far apart as "
            "these, are too few to tell (--pairs)."
        )
    figures = (
        f"{sides}, {_change(ratio)} "
        f"(95 % interval: {_change(interval.low)} to {_change(interval.high)}; "
        f"{len(best)} pairs of fresh launches)"
    )
    if outcome != "no difference shown":
        return f"The best configuration is {outcome} than the default: {figures}."
    differences = np.log(values[0]) - np.log(values[1])
    unseen = gain_from_differences(float(differences.std(ddof=1)), len(differences))
    return (
        f"No difference shown: {figures}; gains under about {100 * unseen:.0f} % cannot be seen so."
    )


def _change(ratio: float | None) -> str:
    assert ratio is not None
    if ratio >= MOST_IN_PERCENT:
        return f"{ratio:.3g} times as much"
    share = 100 * abs(ratio - 1)
    rounded = f"{share:.0f}" if 10 <= share < 99.5 or ratio > 1.1 else f"{share:.1f}"
    return f"{rounded} % {'more' if ratio >= 1 else 'less'}"
