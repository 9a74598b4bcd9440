"""The finals of a study: who among its finalists is the best, and who could as well be.

In: what the search believes, and the fresh starts of the finalists. Out: their standings, and lines for
people. Decides nothing itself: `measurement.finals` does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tuner import verification
from tuner.limits import Limit, missed
from tuner.measurement.finals import Array, Belief, choose, launch_sd
from tuner.objective import Objective
from tuner.report import wording
from tuner.sampling.finalists import Finalists
from tuner.space.footprint import differences, footprint
from tuner.values import Configuration, Finalist, FreshStart, Value

LEAST_SD = 0.005
"""Of a ratio: half a per cent, under which no machine's launches lie."""
INFLATION = 1.15
OWN_SHARE = 0.4
"""Of what the search's launches differ by, that launches loaded in alternating slices still differ by: by recorded
blocks in that order, half a second each, 0.33 to 0.46."""


def roles_of(finalists: Sequence[Configuration]) -> dict[str, Configuration]:
    """The finalists by role."""
    return {f"finalist {place + 1}": one for place, one in enumerate(finalists)}


def standings(
    believed: Finalists,
    starts: Sequence[FreshStart],
    *,
    objective: Objective,
    default: Configuration,
    cores: int,
    limits: Sequence[Limit] = (),
) -> tuple[Finalist, ...]:
    """The finalists, the chosen one first, the others by their launches.

    One that failed as a fresh start, or whose fresh starts together miss a limit, is out, unless all did.

    Args:
        believed: the finalists, in the order of their roles.
        starts: whole rounds of all of them; none where there was no time.
        objective: what is made best.
        default: among tied finalists the cheapest is chosen, then the one nearest to it.
        cores: of the machine.
        limits: that it must keep to.
    """
    roles = list(roles_of(believed.configurations))
    failed = {start.role for start in starts if start.measurement is None}
    failed |= {
        role
        for role in roles
        if missed(
            limits, [one.measurement for one in starts if one.role == role and one.measurement]
        )
    }
    kept = [place for place, role in enumerate(roles) if role not in failed] or list(
        range(len(roles))
    )
    values = _values(starts, [roles[place] for place in kept], objective)
    configurations = [believed.configurations[place] for place in kept]
    choice = choose(
        Belief(
            mean=believed.mean[kept],
            covariance=believed.covariance[np.ix_(kept, kept)],
            launch_sd=believed.launch_sd,
        ),
        values,
        [(footprint(one, cores=cores), differences(one, default)) for one in configurations],
    )
    found = [
        Finalist(
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


def _values(starts: Sequence[FreshStart], roles: Sequence[str], objective: Objective) -> Array:
    """(rounds, roles) of the objective, minimised, of the rounds in which all of them worked."""
    rounds = verification.counted([start for start in starts if start.role in roles], tuple(roles))
    values = [
        [objective.to_minimise(rounds.measurements[role][index]) for role in roles]
        for index in range(rounds.counted)
    ]
    return np.array(values, dtype=float).reshape(-1, len(roles))


def side_by_side(believed: Finalists) -> Finalists:
    """The same of launches that are loaded in slices that alternate: the machine's moment falls out."""
    return dataclasses.replace(believed, launch_sd=OWN_SHARE * believed.launch_sd)


def presumed_sd(
    believed: Finalists, starts: Sequence[FreshStart] = (), *, objective: Objective
) -> float:
    """Spread that the logarithms of ratios of two launches are presumed to have.

    By the search, and by the finals where there were any; somewhat more than they found, for a comparison goes on
    for longer.

    Args:
        believed: by the search.
        starts: whole rounds of all finalists.
        objective: what is made best.
    """
    values = _values(starts, list(roles_of(believed.configurations)), objective)
    sd = launch_sd(np.log(values), believed.launch_sd) if len(values) else believed.launch_sd
    return max(LEAST_SD, INFLATION * math.sqrt(2) * sd)


def told(found: Sequence[Finalist], named: Callable[[Mapping[str, Value]], str]) -> Iterator[str]:
    """How the finals ended; nothing where there were none."""
    if not found:
        return
    yield f"best of the finalists: {named(found[0].configuration)}"
    for one in found[1:]:
        standing = "tied with it" if one.is_tied else "behind it"
        if one.is_compared:
            standing += f", {wording.ratio(one.ratio, one.interval)}"
        yield f"{standing}: {named(one.configuration)}"
