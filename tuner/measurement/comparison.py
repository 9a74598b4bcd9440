"""Verdict on the best against the default: a ratio with an interval, from pairs of evaluations.

The evaluations of a pair are close in time, so machine drift cancels. `measurement.sequential`
decides when to stop, with an error of 5 % shared by the objectives.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tuner.errors import UsageError
from tuner.measurement import sequential
from tuner.measurement.power import gain_from_differences
from tuner.measurement.sequential import EQUIVALENCE_MARGIN, Estimate, StoppingRule
from tuner.metrics import objective as objectives
from tuner.metrics.objective import Objective
from tuner.values.configuration import Configuration
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.verdict import (
    PredictionComparison,
    SecondObjectiveVerdict,
    Verdict,
    VerdictOutcome,
)

MIN_PAIRS = 2
SESSION_SD = 0.035
"""Sd of a log ratio between sessions hours apart, with margin (benchmarks/verdict/sessions.py)."""
NAMES = ("the default", "the best configuration")
MAX_IN_PERCENT = 3.0


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, Interval]:
    """Return the geometric mean of two or more paired ratios, with its 95 % interval."""
    _check_pairs(len(denominators), len(numerators))
    differences = np.log(numerators) - np.log(denominators)
    mean, pairs = float(differences.mean()), len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(pairs)
    reach = float(special.stdtrit(pairs - 1, 0.975)) * error
    return math.exp(mean), Interval(low=math.exp(mean - reach), high=math.exp(mean + reach))


def _check_pairs(default: int, best: int) -> None:
    if default != best or best < MIN_PAIRS:
        raise UsageError(
            f"{default} evaluations of the default and {best} of the best configuration: "
            f"expected the same number of each, at least {MIN_PAIRS}"
        )


def is_enough(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    names: Sequence[str],
    rule: StoppingRule,
    nodes: Sequence[str] = (),
) -> bool:
    """Whether the pairs so far suffice to end the comparison in every objective.

    Args:
        nodes: machine of each pair; empty if all are of the same.
    """
    if len(best) < MIN_PAIRS:
        return False
    found = map(objectives.find_objective, names)
    return all(rule.is_enough(_differences(default, best, one), nodes) for one in found)


def compare(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    *,
    objective: str,
    second: str | None = None,
    rule: StoppingRule | None = None,
    names: tuple[str, str] = NAMES,
    nodes: Sequence[str] = (),
) -> Verdict:
    """Reach a verdict from pairs of evaluations, matched by position.

    Args:
        rule: decided when to stop, accounting for `second`; None if the number of pairs was fixed.
        nodes: machine of each pair; empty if all are of the same.

    Raises:
        UsageError: there are fewer than two pairs, the counts differ, or an objective is unknown.
    """
    made_best = objectives.find_objective(objective)
    differences = _differences(default, best, made_best)
    alpha = sequential.ALPHA if rule is None else rule.alpha
    found = sequential.estimate(differences, nodes, alpha=alpha)
    ratio = math.exp(found.value)
    interval = Interval(low=math.exp(found.low), high=math.exp(found.high))
    throughput_ratio, throughput_interval = _ratio(
        default, best, objectives.find_objective("throughput")
    )
    p99_ratio, p99_interval = _p99_ratio(default, best)
    outcome: VerdictOutcome = "no difference shown"
    if found.is_shown:
        outcome = "worse" if (ratio > 1) == made_best.is_minimised else "better"
    verdict = Verdict(
        outcome=outcome,
        ratio=ratio,
        interval=interval,
        between_session_interval=between_session_interval(ratio, interval, alpha=alpha),
        throughput_ratio=throughput_ratio,
        throughput_interval=throughput_interval,
        p99_ratio=p99_ratio,
        p99_interval=p99_interval,
        default=tuple(default),
        best=tuple(best),
        text="",
        second=None if second is None else _second_verdict(default, best, second, rule, nodes),
    )
    is_shared = rule is not None and rule.objectives > 1
    sd = sequential.robust_mean(differences, nodes).sd
    text = _sentence(verdict, made_best, found, sd, names, is_shared=is_shared)
    return dataclasses.replace(verdict, text=text)


def _second_verdict(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    objective: str,
    rule: StoppingRule | None,
    nodes: Sequence[str],
) -> SecondObjectiveVerdict:
    found = compare(default, best, objective=objective, rule=rule, nodes=nodes)
    return SecondObjectiveVerdict(
        objective=objective,
        outcome=found.outcome,
        ratio=found.ratio,
        interval=found.interval,
        between_session_interval=found.between_session_interval,
        text=found.text,
    )


def between_session_interval(
    ratio: float, interval: Interval, *, alpha: float = sequential.ALPHA
) -> Interval:
    """Return a prediction interval for the ratio in another session, at confidence 1 - alpha."""
    assert interval.low is not None
    assert interval.high is not None
    moved = float(special.ndtri(1 - alpha / 2)) * SESSION_SD
    below, above = math.log(ratio / interval.low), math.log(interval.high / ratio)
    return Interval(
        low=ratio * math.exp(-math.hypot(below, moved)),
        high=ratio * math.exp(math.hypot(above, moved)),
    )


def compare_with_prediction(
    guess: Sequence[Measurement],
    best: Sequence[Measurement],
    *,
    configuration: Configuration,
    objective: str,
) -> PredictionComparison:
    """Compare the best with the prediction's choice over two or more pairs of evaluations."""
    made_best = objectives.find_objective(objective)
    ratio, interval = _ratio(guess, best, made_best)
    assert ratio is not None, "both were measured"
    return PredictionComparison(
        configuration=configuration,
        outcome=made_best.judge(interval),
        ratio=ratio,
        interval=interval,
        pairs=len(best),
    )


def _differences(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> list[float]:
    _check_pairs(len(default), len(best))
    return [
        math.log(objective.value(ours)) - math.log(objective.value(theirs))
        for ours, theirs in zip(best, default, strict=True)
    ]


def middles(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: str
) -> tuple[float, float] | None:
    """Return both middles, as far apart as the pairs' mean ratio; None unless all are above 0."""
    made_best = objectives.find_objective(objective)
    if not all(made_best.value(one) > 0 for one in (*default, *best)):
        return None
    values = np.log([[made_best.value(one) for one in side] for side in (default, best)])
    apart = sequential.robust_mean(_differences(default, best, made_best)).mean
    middle = sum(sequential.robust_mean(side).mean for side in values.tolist()) / 2
    return math.exp(middle - apart / 2), math.exp(middle + apart / 2)


def _ratio(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> tuple[float | None, Interval]:
    values = [list(map(objective.value, side)) for side in (best, default)]
    if not all(value > 0 for side in values for value in side):
        return None, UNKNOWN  # no response in a measured part
    return ratio_interval(*values)


def _p99_ratio(
    default: Sequence[Measurement], best: Sequence[Measurement]
) -> tuple[float | None, Interval]:
    told = [pair for pair in zip(default, best, strict=True) if all(one.has_p99 for one in pair)]
    if len(told) < MIN_PAIRS:
        return None, UNKNOWN
    return _ratio(
        [one for one, _ in told], [one for _, one in told], objectives.find_objective("p99")
    )


def _sentence(
    verdict: Verdict,
    objective: Objective,
    found: Estimate,
    sd: float,
    names: tuple[str, str],
    *,
    is_shared: bool,
) -> str:
    pairs = len(verdict.best)
    values = middles(verdict.default, verdict.best, objective.name)
    assert values is not None, "the pairs have a ratio"
    before, now = (f"{value:.4g} {objective.unit}".strip() for value in values)
    of, subject = names[0], names[1][0].upper() + names[1][1:]
    sides = f"{objective.label} {now} against {before} of {of}"
    if verdict.interval.is_vague:
        return (
            f"No difference shown: {sides}; {pairs} pairs of evaluations that differ "
            "this much are too few (--max-time)."
        )
    both = ", both objectives together" if is_shared else ""
    figures = (
        f"{sides}, {change_in_words(verdict.ratio)} "
        f"(95 % interval here and now{both}: {span_in_words(verdict.interval)}; "
        f"on another day: {span_in_words(verdict.between_session_interval)}; {pairs} pairs of evaluations)"
    )
    if found.is_shown:
        return f"{subject} is {verdict.outcome} than {of}: {figures}."
    if found.low >= -EQUIVALENCE_MARGIN and found.high <= EQUIVALENCE_MARGIN:
        margin = f"{100 * math.expm1(EQUIVALENCE_MARGIN):.2g} %"
        return f"No difference that matters: {figures}; it is shown to be under {margin}."
    unseen = gain_from_differences(sd, pairs)
    return (
        f"No difference shown: {figures}; differences under about {100 * unseen:.2g} "
        f"% cannot be seen in this time, and under {50 * unseen:.2g} % in four times "
        "the time."
    )


def span_in_words(interval: Interval) -> str:
    """Return the ends of a ratio's interval in words: 5 % less to 2 % more."""
    ends = [interval.low, interval.high]
    assert ends[0] is not None
    assert ends[1] is not None
    if ends[1] >= MAX_IN_PERCENT and ends[0] >= 1:
        return f"{ends[0]:.3g} to {ends[1]:.3g} times as much"
    if ends[1] < 1:
        ends.reverse()
    low, high = map(change_in_words, ends)
    return f"{low} to {high}"


def change_in_words(ratio: float | None) -> str:
    """Return a ratio in words: 5 % less."""
    assert ratio is not None
    if ratio >= MAX_IN_PERCENT:
        return f"{ratio:.3g} times as much"
    share = 100 * abs(ratio - 1)
    rounded = f"{share:.0f}" if 10 <= share < 99.5 or ratio > 1.1 else f"{share:.1f}"
    return f"{rounded} % {'more' if ratio >= 1 else 'less'}"
