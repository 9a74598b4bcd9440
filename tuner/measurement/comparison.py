"""Default against best, re-measured alternating on fresh launches: a ratio with an interval, and a verdict.

In: measurements of both, in pairs of launches that stood next to each other in time. Out: whether these
are enough, and a `Verdict`.

The ratio is best over default. What is counted are launches, not requests or blocks, and a slow drift of the
machine falls out of each pair. Pairs are added until their differences show something or their number
is reached; the boundaries, and estimate and interval after the stop, are those of
`measurement.sequential`: of two equal configurations one comparison in twenty shows a difference, one
in forty that the best is better, however often one looks. Objectives that are compared by the same pairs
share that error. The intervals of throughput, p99 and a prediction's choice are plain ones at the same
end, which nothing is decided by.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from scipy import special

from tuner import objective as objectives
from tuner.errors import WrongUse
from tuner.measurement import sequential
from tuner.measurement.power import gain_from_differences
from tuner.measurement.sequential import Plan, looks
from tuner.objective import Objective
from tuner.values import (
    UNKNOWN,
    Against,
    Beside,
    Configuration,
    Interval,
    Measurement,
    Verdict,
    VerdictOutcome,
)

LEAST_PAIRS = 2
WITHIN = math.log(1.03)
"""A difference of logarithms that is too small to matter: 3 %."""
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How long pairs are added."""

    most: int
    """Pairs at which it ends anyway."""
    sd: float
    """Standard deviation that the logarithms of the pairs' ratios are presumed to have, from the search."""
    objectives: int = 1
    """Compared by the same pairs: each has its part of the error, so that all intervals hold together in
    95 of 100 comparisons (Bonferroni), and the best is called better in any of them by chance in one of forty."""

    @property
    def alpha(self) -> float:
        """Error of the comparison in one objective."""
        return sequential.ALPHA / self.objectives

    def stop(self, differences: Sequence[float]) -> Stop | None:
        """The look at which the pairs so far end a comparison; None where it should go on.

        Args:
            differences: logarithms of the pairs' ratios, in their order.
        """
        plan = Plan.of(looks(self.most), sd=self.sd, alpha=self.alpha)
        for look, count in enumerate(plan.looks):
            if count > len(differences):
                return None
            reading = sequential.read(plan, differences, look)
            is_small = reading.low >= -WITHIN and reading.high <= WITHIN
            if reading.is_crossed or is_small or count == self.most:
                return Stop(plan, look)
        return None

    def stopped(self, differences: Sequence[float]) -> Stop:
        """The same, where it ends with these pairs whatever they show: time is up, or launches failed."""
        found = self.stop(differences)
        if found is not None:
            return found
        count = len(differences)
        at = (*(look for look in looks(self.most) if look < count), count)
        plan = Plan.of(at, sd=self.sd, most=self.most, alpha=self.alpha)
        return Stop(plan, len(at) - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Where a comparison stopped."""

    plan: Plan
    look: int

    @classmethod
    def fixed(cls, count: int) -> Self:
        """At a number of pairs that was set before."""
        return cls(Plan.of((count,), sd=1.0), 0)


def is_enough(
    default: Sequence[Measurement], best: Sequence[Measurement], names: Sequence[str], rule: Rule
) -> bool:
    """Whether the pairs so far end the comparison, in every objective; arguments as for `compare`.

    Args:
        default: measurements of the default configuration.
        best: as many of the recommended one; also fewer than two.
        names: of the objectives.
        rule: by which pairs are added.
    """
    if len(best) < LEAST_PAIRS:
        return False
    return all(rule.stop(differences_of(default, best, name)) is not None for name in names)


def compare(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    *,
    objective: str,
    second: str | None = None,
    rule: Rule | None = None,
) -> Verdict:
    """The verdict over pairs of launches: the first of one belongs to the first of the other.

    Args:
        default: measurements of the default configuration, one per launch.
        best: as many of the recommended one.
        objective: a name of `tuner.objective`.
        second: another one that is compared by the same pairs, of which the rule knows.
        rule: by which pairs were added; None: their number was fixed.

    Raises:
        WrongUse: fewer than two pairs, unequal numbers, or an unknown objective.
    """
    made_best = objectives.named(objective)
    differences = _differences(default, best, made_best)
    alpha = sequential.ALPHA if rule is None else rule.alpha
    ended = Stop.fixed(len(differences)) if rule is None else rule.stopped(differences)
    found = sequential.estimate(ended.plan, differences, ended.look, alpha=alpha)
    ratio = math.exp(found.value)
    interval = Interval(low=math.exp(found.low), high=math.exp(found.high))
    throughput_ratio, throughput_interval = _ratio(default, best, objectives.named("throughput"))
    p99_ratio, p99_interval = _p99_ratio(default, best)
    outcome: VerdictOutcome = "no difference shown"
    if found.is_shown:
        outcome = "worse" if (ratio > 1) == made_best.is_minimised else "better"
    sentence = _Sentence(
        default, best, made_best, differences, is_shared=rule is not None and rule.objectives > 1
    )
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
        text=sentence.text(
            outcome, ratio, interval, is_small=found.low >= -WITHIN and found.high <= WITHIN
        ),
        second=None if second is None else _beside(default, best, second, rule),
    )


def _beside(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: str, rule: Rule | None
) -> Beside:
    found = compare(default, best, objective=objective, rule=rule)
    return Beside(
        objective=objective,
        outcome=found.outcome,
        ratio=found.ratio,
        interval=found.interval,
        text=found.text,
    )


def against(
    guess: Sequence[Measurement],
    best: Sequence[Measurement],
    *,
    configuration: Configuration,
    objective: str,
) -> Against:
    """The best beside a prediction's choice, over pairs of launches.

    Raises:
        WrongUse: fewer than two pairs, or unequal numbers.
    """
    made_best = objectives.named(objective)
    ratio, interval = _ratio(guess, best, made_best)
    return Against(
        configuration=configuration,
        outcome=made_best.judged(interval),
        ratio=ratio,
        interval=interval,
        pairs=len(best),
    )


def differences_of(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: str
) -> list[float]:
    """Logarithms of the pairs' ratios, best over default."""
    return _differences(default, best, objectives.named(objective))


def _differences(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> list[float]:
    if len(default) != len(best) or len(best) < LEAST_PAIRS:
        raise WrongUse(
            f"{len(default)} launches of the default and {len(best)} of the best configuration: "
            f"expected as many of each, at least {LEAST_PAIRS}"
        )
    return [
        math.log(objective.value(ours)) - math.log(objective.value(theirs))
        for ours, theirs in zip(best, default, strict=True)
    ]


def _ratio(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> tuple[float, Interval]:
    return ratio_interval(list(map(objective.value, best)), list(map(objective.value, default)))


def _p99_ratio(
    default: Sequence[Measurement], best: Sequence[Measurement]
) -> tuple[float | None, Interval]:
    """Over the pairs of which both have a p99; None where these are too few."""
    told = [pair for pair in zip(default, best, strict=True) if all(one.has_p99 for one in pair)]
    if len(told) < LEAST_PAIRS:
        return None, UNKNOWN
    return _ratio([one for one, _ in told], [one for _, one in told], objectives.named("p99"))


def _standard_error(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(differences.std(ddof=1)) / math.sqrt(len(differences))


@dataclasses.dataclass(frozen=True, slots=True)
class _Sentence:
    """What a verdict says to a person."""

    default: Sequence[Measurement]
    best: Sequence[Measurement]
    objective: Objective
    differences: Sequence[float]
    is_shared: bool
    """Whether another objective is compared by the same pairs."""

    def text(
        self, outcome: VerdictOutcome, ratio: float, interval: Interval, *, is_small: bool
    ) -> str:
        """The sentence."""
        objective, pairs = self.objective, len(self.best)
        values = [list(map(objective.value, side)) for side in (self.best, self.default)]
        now, before = (
            f"{math.exp(float(np.log(value).mean())):.4g} {objective.unit}" for value in values
        )
        sides = f"{objective.label} {now} against {before} of the default"
        if interval.is_vague:
            return (
                f"No difference shown: {sides}; {pairs} pairs of fresh launches, as far apart as "
                "these, are too few to tell (--pairs, --max-time)."
            )
        both = ", both objectives together" if self.is_shared else ""
        figures = (
            f"{sides}, {_change(ratio)} "
            f"(95 % interval{both}: {_change(interval.low)} to {_change(interval.high)}; "
            f"{pairs} pairs of fresh launches)"
        )
        if outcome != "no difference shown":
            return f"The best configuration is {outcome} than the default: {figures}."
        if is_small:
            return f"No difference that matters: {figures}; it is shown to be under 3 %."
        spread = float(np.std(self.differences, ddof=1))
        unseen = gain_from_differences(spread, pairs)
        return f"No difference shown: {figures}; gains under about {100 * unseen:.0f} % cannot be seen so."


def _change(ratio: float | None) -> str:
    assert ratio is not None
    if ratio >= MOST_IN_PERCENT:
        return f"{ratio:.3g} times as much"
    share = 100 * abs(ratio - 1)
    rounded = f"{share:.0f}" if 10 <= share < 99.5 or ratio > 1.1 else f"{share:.1f}"
    return f"{rounded} % {'more' if ratio >= 1 else 'less'}"
