"""Final selection, which ranks the shortlist by the search and by round evaluations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tuner.measurement.best_arm import Array, Posterior, choose, evaluation_sd
from tuner.metrics.metric_constraints import MetricConstraint, find_violation
from tuner.metrics.objective import Objective
from tuner.report import formatting
from tuner.sampling.shortlist import Shortlist
from tuner.space.footprint import differences, footprint
from tuner.study import verification
from tuner.values.configuration import Configuration, Value
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.verification_state import ShortlistEntry

MIN_SD = 0.005
"""Minimum spread of a ratio; every machine varies by at least half a per cent."""
INFLATION = 1.15
OWN_SHARE = 0.4
"""Share of the search's evaluation spread that remains with interleaving.

Recorded blocks of half a second gave 0.33 to 0.46.
"""


def name_arms(finalists: Sequence[Configuration]) -> dict[str, Configuration]:
    """Return the shortlisted configurations by arm name."""
    return {f"finalist {place + 1}": one for place, one in enumerate(finalists)}


def rank_shortlist(
    posterior: Shortlist,
    evaluations: Sequence[RoundEvaluation],
    *,
    objective: Objective,
    default: Configuration,
    cores: int,
    limits: Sequence[MetricConstraint] = (),
) -> tuple[ShortlistEntry, ...]:
    """Return the shortlist: the chosen configuration first, then those tied with it.

    Configurations that failed in a round, or that violate a constraint over all rounds, are left
    out, unless that applies to all.

    Args:
        posterior: in the order of the arms.
        evaluations: complete rounds of all arms; may be empty.
        default: ties go to the cheapest configuration, then to the one nearest to the default.
    """
    roles = list(name_arms(posterior.configurations))
    failed = {evaluation.role for evaluation in evaluations if evaluation.measurement is None}
    failed |= {
        role
        for role in roles
        if find_violation(
            limits, [one.measurement for one in evaluations if one.role == role and one.measurement]
        )
    }
    kept = [place for place, role in enumerate(roles) if role not in failed] or list(
        range(len(roles))
    )
    values = _values(evaluations, [roles[place] for place in kept], objective)
    configurations = [posterior.configurations[place] for place in kept]
    choice = choose(
        Posterior(
            mean=posterior.mean[kept],
            covariance=posterior.covariance[np.ix_(kept, kept)],
            evaluation_sd=posterior.evaluation_sd,
        ),
        values,
        [(footprint(one, cores=cores), differences(one, default)) for one in configurations],
    )
    found = [
        ShortlistEntry(
            configuration=one,
            ratio=choice.ratios[place] if objective.is_minimised else 1 / choice.ratios[place],
            interval=choice.intervals[place]
            if objective.is_minimised
            else choice.intervals[place].inverse,
            is_tied=choice.tied[place],
        )
        for place, one in enumerate(configurations)
    ]
    others = [one for place, one in enumerate(found) if place != choice.chosen]
    return (found[choice.chosen], *sorted(others, key=lambda one: not one.is_tied))


def _values(
    evaluations: Sequence[RoundEvaluation], arms: Sequence[str], objective: Objective
) -> Array:
    """Return the minimised objective in rounds without failures, (rounds, arms)."""
    rounds = verification.count_rounds(
        [evaluation for evaluation in evaluations if evaluation.role in arms], tuple(arms)
    )
    values = [
        [objective.to_minimise(rounds.measurements[role][index]) for role in arms]
        for index in range(rounds.complete_rounds)
    ]
    return np.array(values, dtype=float).reshape(-1, len(arms))


def for_interleaving(posterior: Shortlist) -> Shortlist:
    """Return the shortlist for interleaved evaluations, which cancel machine drift."""
    return dataclasses.replace(posterior, evaluation_sd=OWN_SHARE * posterior.evaluation_sd)


def assumed_sd(
    posterior: Shortlist, evaluations: Sequence[RoundEvaluation] = (), *, objective: Objective
) -> float:
    """Return the assumed spread of the log ratio of two evaluations.

    It comes from search and final selection, with a margin because comparisons take longer.
    """
    values = _values(evaluations, list(name_arms(posterior.configurations)), objective)
    sd = (
        evaluation_sd(np.log(values), posterior.evaluation_sd)
        if len(values)
        else posterior.evaluation_sd
    )
    return max(MIN_SD, INFLATION * math.sqrt(2) * sd)


def describe(
    found: Sequence[ShortlistEntry], named: Callable[[Mapping[str, Value]], str]
) -> Iterator[str]:
    """Yield the result of the final selection in words, if one took place."""
    if not found:
        return
    yield f"best of the final selection: {named(found[0].configuration)}"
    for one in found[1:]:
        standing = "tied with it" if one.is_tied else "behind it"
        if one.is_compared:
            standing += f", {formatting.ratio(one.ratio, one.interval)} the best's"
        yield f"{standing}: {named(one.configuration)}"
