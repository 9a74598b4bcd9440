"""Comparison of an export's evaluations with those of its study, which are of another session.

The evaluations have no pairs, so drift between the sessions does not cancel: it is part of the ratio.
Its interval is Welch's (Biometrika 34:28, 1947), on logarithms and with robust means; a single
evaluation of the study counts as varying as those here do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from tuner.errors import UsageError
from tuner.measurement import sequential
from tuner.measurement.comparison import change_in_words, span_in_words
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint, find_violation
from tuner.values.confirmation import ConfirmationOutcome, UnpairedComparison
from tuner.values.interval import Interval
from tuner.values.measurement import Measurement

MIN_EVALUATIONS = 2
MARGIN = 0.1
"""Default difference that still counts as the same: machines of one kind differ by as much."""
BEGINNINGS: dict[ConfirmationOutcome, str] = {
    "same": "As in the study",
    "better": "Better than in the study",
    "worse": "Worse than in the study",
    "undecided": "Undecided",
}


def compare_unpaired(
    study: Sequence[Measurement],
    here: Sequence[Measurement],
    *,
    objective: str,
    limits: Sequence[MetricConstraint] = (),
    margin: float = MARGIN,
) -> UnpairedComparison:
    """Compare evaluations `here` with those of a study.

    The outcome is "worse" if those here violate a constraint. It is "same" if the whole interval
    lies within the margin, else "better" or "worse" if it excludes 1, else "undecided".

    Args:
        limits: the study's constraints.
        margin: largest difference that counts as the same, as a share.

    Raises:
        UsageError: there are fewer than two evaluations here or none in the study, or a side
            lacks the objective.
    """
    compared = objectives.find_objective(objective)
    logs = []
    for side, name, least in ((study, "study's", 1), (here, "export's", MIN_EVALUATIONS)):
        values = list(map(compared.value, side))
        if len(values) < least:
            raise UsageError(
                f"{len(values)} of the {name} evaluations worked, too few to compare: expected "
                f"at least {least}"
            )
        if not all(value > 0 for value in values):
            raise UsageError(f"the {name} evaluations do not tell the objective {objective}")
        logs.append(list(map(math.log, values)))
    now = sequential.robust_mean(logs[1])
    is_single = len(logs[0]) == 1
    before = now._replace(mean=logs[0][0]) if is_single else sequential.robust_mean(logs[0])
    parts = [one.sd**2 / len(side) for one, side in zip((before, now), logs, strict=True)]
    difference, variance = now.mean - before.mean, math.fsum(parts)
    reach = 0.0
    if variance > 0:
        degrees = variance**2 / math.fsum(
            part**2 / one.degrees for part, one in zip(parts, (before, now), strict=True)
        )
        degrees = now.degrees if is_single else degrees
        reach = float(special.stdtrit(degrees, 0.975)) * math.sqrt(variance)
    low, high = difference - reach, difference + reach
    outcome: ConfirmationOutcome = "undecided"
    violation = find_violation(limits, here)
    if violation is not None:
        outcome = "worse"
    # Symmetric in the logarithm, so that twice and half are equally far.
    elif max(abs(low), abs(high)) <= math.log1p(margin):
        outcome = "same"
    elif low > 0 or high < 0:
        outcome = "worse" if (difference > 0) == compared.is_minimised else "better"
    interval = Interval(low=math.exp(low), high=math.exp(high))
    middles = [f"{math.exp(one.mean):.4g} {compared.unit}".strip() for one in (now, before)]
    margin_text = f"{100 * margin:.3g} %"
    end = {
        "same": f"this is within {margin_text}",
        "undecided": f"the interval reaches beyond {margin_text}, so more evaluations are "
        "needed (--repeats)",
    }.get(outcome)
    text = (
        f"{BEGINNINGS[outcome]}: {'' if violation is None else f'{violation}; '}"
        f"{compared.label} {middles[0]} where it runs against {middles[1]} in "
        f"the study, {change_in_words(math.exp(difference))} (95 % interval: "
        f"{span_in_words(interval)}; {len(here)} evaluations here, {len(study)} in the study)"
        f"{'' if end is None else f'; {end}'}."
    )
    return UnpairedComparison(
        outcome=outcome, ratio=math.exp(difference), interval=interval, text=text
    )
