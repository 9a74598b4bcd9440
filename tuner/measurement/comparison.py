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
import statistics
from collections.abc import Sequence

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
SESSION_SD = 0.035
"""Standard deviation by which the logarithm of a ratio of two configurations moves from one session to another,
hours later: 3.1 % between two recordings of one grid (benchmarks/verdict/sessions.py), with some room."""
NAMES = ("the default", "the best configuration")
MOST_WIDER = 1.5
"""Spread of the pairs over what was presumed, from which nothing has been shown to be small."""
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
    at: float = 0.0
    """Difference of logarithms that is decided about: above or below it."""
    objectives: int = 1
    """Compared by the same pairs: each has its part of the error, so that all intervals hold together in
    95 of 100 comparisons (Bonferroni), and the best is called better in any of them by chance in one of forty."""

    @property
    def alpha(self) -> float:
        """Error of the comparison in one objective."""
        return sequential.ALPHA / self.objectives

    def is_enough(self, differences: Sequence[float]) -> bool:
        """Whether the pairs so far end a comparison.

        Args:
            differences: logarithms of the pairs' ratios, in their order.
        """
        differences = [one - self.at for one in differences]
        plan = Plan.of(looks(self.most), sd=self.sd, alpha=self.alpha)
        return any(
            count == self.most or self._is_told(plan, differences[:count], look)
            for look, count in enumerate(plan.looks)
            if count <= len(differences)
        )

    def _is_told(self, plan: Plan, differences: Sequence[float], look: int) -> bool:
        """Whether a look shows something, and the pairs' own interval says the same.

        That a difference is small is shown by an interval that is not much wider than was planned.
        """
        reading = sequential.read(plan, differences, look)
        found = sequential.estimate(differences, alpha=self.alpha)
        if reading.is_crossed:
            return found.is_shown
        if self.at:
            return False
        is_narrow = sequential.known(differences).sd <= MOST_WIDER * self.sd
        ends = (reading.low, reading.high, found.low, found.high)
        return is_narrow and all(-WITHIN <= end <= WITHIN for end in ends)


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
    return all(rule.is_enough(differences_of(default, best, name)) for name in names)


def compare(
    default: Sequence[Measurement],
    best: Sequence[Measurement],
    *,
    objective: str,
    second: str | None = None,
    rule: Rule | None = None,
    names: tuple[str, str] = NAMES,
) -> Verdict:
    """The verdict over pairs of launches: the first of one belongs to the first of the other.

    Args:
        default: measurements of the default configuration, one per launch.
        best: as many of the recommended one.
        objective: a name of `tuner.objective`.
        second: another one that is compared by the same pairs, of which the rule knows.
        rule: by which pairs were added; None: their number was fixed.
        names: of both in sentences, the default's first.

    Raises:
        WrongUse: fewer than two pairs, unequal numbers, or an unknown objective.
    """
    made_best = objectives.named(objective)
    differences = _differences(default, best, made_best)
    alpha = sequential.ALPHA if rule is None else rule.alpha
    found = sequential.estimate(differences, alpha=alpha)
    ratio = math.exp(found.value)
    interval = Interval(low=math.exp(found.low), high=math.exp(found.high))
    throughput_ratio, throughput_interval = _ratio(default, best, objectives.named("throughput"))
    p99_ratio, p99_interval = _p99_ratio(default, best)
    later = another_day(ratio, interval, alpha=alpha)
    outcome: VerdictOutcome = "no difference shown"
    if found.is_shown:
        outcome = "worse" if (ratio > 1) == made_best.is_minimised else "better"
    sentence = _Sentence(
        default,
        best,
        made_best,
        differences,
        names,
        is_shared=rule is not None and rule.objectives > 1,
    )
    return Verdict(
        outcome=outcome,
        ratio=ratio,
        interval=interval,
        another_day=later,
        throughput_ratio=throughput_ratio,
        throughput_interval=throughput_interval,
        p99_ratio=p99_ratio,
        p99_interval=p99_interval,
        default=tuple(default),
        best=tuple(best),
        text=sentence.text(
            outcome,
            ratio,
            interval,
            later,
            is_small=found.low >= -WITHIN and found.high <= WITHIN,
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
        another_day=found.another_day,
        text=found.text,
    )


def another_day(ratio: float, interval: Interval, *, alpha: float = sequential.ALPHA) -> Interval:
    """Where the ratio will lie in another session: a prediction interval with the spread of sessions.

    Args:
        ratio: as it was measured.
        interval: of the ratio, at the time of the measurement.
        alpha: one minus the confidence of both.
    """
    assert interval.low is not None
    assert interval.high is not None
    moved = float(special.ndtri(1 - alpha / 2)) * SESSION_SD
    below, above = math.log(ratio / interval.low), math.log(interval.high / ratio)
    return Interval(
        low=ratio * math.exp(-math.hypot(below, moved)),
        high=ratio * math.exp(math.hypot(above, moved)),
    )


def excess_sd(rounds: Sequence[Sequence[float]]) -> float | None:
    """By how much rounds differ beyond what the parts of one round do; 0 where no more than by chance.

    Analysis of variance of one way (Searle, Casella and McCulloch, Variance Components, section 3.6).

    Args:
        rounds: differences of the parts of each round, of its quartets of slices; those with other numbers of
            parts than most are left out.

    Returns:
        A standard deviation; None under two rounds of two parts.
    """
    size = statistics.mode(map(len, rounds)) if rounds else 0
    alike = np.array([one for one in rounds if len(one) == size], dtype=float)
    if size < LEAST_PAIRS or len(alike) < LEAST_PAIRS:
        return None
    within = float(alike.var(axis=1, ddof=1).mean())
    between = size * float(alike.mean(axis=1).var(ddof=1))
    return math.sqrt(max(0.0, (between - within) / size))


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
    assert ratio is not None, "both were measured"
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


def middles(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: str
) -> tuple[float, float] | None:
    """An objective of both, in its unit, over all pairs: as far apart as the middle of the pairs' ratios says.

    Returns:
        None where a launch has no value above 0: no answer came in its measured part.
    """
    made_best = objectives.named(objective)
    if not all(made_best.value(one) > 0 for one in (*default, *best)):
        return None
    values = np.log([[made_best.value(one) for one in side] for side in (default, best)])
    apart = sequential.known(_differences(default, best, made_best)).mean
    middle = sum(sequential.known(side).mean for side in values.tolist()) / 2
    return math.exp(middle - apart / 2), math.exp(middle + apart / 2)


def _ratio(
    default: Sequence[Measurement], best: Sequence[Measurement], objective: Objective
) -> tuple[float | None, Interval]:
    values = [list(map(objective.value, side)) for side in (best, default)]
    if not all(value > 0 for side in values for value in side):
        return None, UNKNOWN  # no answer came in a measured part
    return ratio_interval(*values)


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
    names: tuple[str, str]
    is_shared: bool
    """Whether another objective is compared by the same pairs."""

    def text(
        self,
        outcome: VerdictOutcome,
        ratio: float,
        interval: Interval,
        later: Interval,
        *,
        is_small: bool,
    ) -> str:
        """The sentence."""
        objective, pairs = self.objective, len(self.best)
        values = middles(self.default, self.best, objective.name)
        assert values is not None, "the pairs have a ratio"
        before, now = (f"{value:.4g} {objective.unit}".strip() for value in values)
        of, subject = self.names[0], self.names[1][0].upper() + self.names[1][1:]
        sides = f"{objective.label} {now} against {before} of {of}"
        if interval.is_vague:
            return (
                f"No difference shown: {sides}; {pairs} pairs of launches, as far apart as "
                "these, are too few to tell (--max-time)."
            )
        both = ", both objectives together" if self.is_shared else ""
        figures = (
            f"{sides}, {_change(ratio)} "
            f"(95 % interval here and now{both}: {_span(interval)}; on another day: {_span(later)}; "
            f"{pairs} pairs of launches)"
        )
        if outcome != "no difference shown":
            return f"{subject} is {outcome} than {of}: {figures}."
        if is_small:
            return f"No difference that matters: {figures}; it is shown to be under 3 %."
        spread = sequential.known(self.differences).sd
        unseen = gain_from_differences(spread, pairs)
        return (
            f"No difference shown: {figures}; differences under about {100 * unseen:.2g} % cannot be seen so, and in "
            f"four times the time differences under {50 * unseen:.2g} %."
        )


def _span(interval: Interval) -> str:
    """From one end to the other, the smaller change first."""
    ends = [interval.low, interval.high]
    assert ends[0] is not None
    assert ends[1] is not None
    if ends[1] >= MOST_IN_PERCENT and ends[0] >= 1:
        return f"{ends[0]:.3g} to {ends[1]:.3g} times as much"
    if ends[1] < 1:
        ends.reverse()
    low, high = map(_change, ends)
    return f"{low} to {high}"


def _change(ratio: float | None) -> str:
    assert ratio is not None
    if ratio >= MOST_IN_PERCENT:
        return f"{ratio:.3g} times as much"
    share = 100 * abs(ratio - 1)
    rounded = f"{share:.0f}" if 10 <= share < 99.5 or ratio > 1.1 else f"{share:.1f}"
    return f"{rounded} % {'more' if ratio >= 1 else 'less'}"
