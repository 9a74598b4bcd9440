"""What a search has learnt of the machines that measure: how they drift, and how much they differ."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tuner.sampling import recommendation
from tuner.sampling.surrogates.machine_speed import NODE_SD
from tuner.study.search import CHECK_EVERY, Search

MAX_DRIFT = 0.05
"""Drift over a search above which it is reported; evaluations differ by as much anyway."""
SLOW, MIN_ON_NODE = 4 * NODE_SD, 3
"""Logarithm by which a machine must surely be slower than the others to be left out, and the number of
evaluations there that tell."""


def drift(search: Search) -> str | None:
    """Describe machine drift if it is considerable, otherwise return None."""
    worked = [trial for trial in search.trials if trial.objective is not None]
    if len({trial.node for trial in worked}) > 1:
        return None
    mean, error = recommendation.estimate_drift(search.store.study, **search.given)
    if len(mean) != len(worked) or not len(mean):
        return None
    slow, quick = int(np.argmax(mean)), int(np.argmin(mean))
    apart = float(mean[slow] - mean[quick])
    if apart < MAX_DRIFT or apart < 2 * float(np.hypot(error[slow], error[quick])):
        return None
    return (
        f"the machine was {math.expm1(apart):.0%} slower around trial "
        f"{worked[slow].number} than around trial {worked[quick].number}: comparisons "
        "of trials correct for this, but a quieter machine gives better results"
    )


def node_speeds(search: Search) -> str | None:
    """Describe how much the machines differ, if there are several."""
    found = recommendation.estimate_node_speeds(search.store.study, **search.given)
    if found is None:
        return None
    said = []
    sign = 1.0 if search.objective.is_minimised else -1.0
    for name, mean, variance in zip(
        found.names, sign * found.mean, np.diag(found.covariance), strict=True
    ):
        low, high = mean - 1.96 * math.sqrt(variance), mean + 1.96 * math.sqrt(variance)
        each = " to ".join(f"{math.expm1(end):+.1%}" for end in (low, high))
        said.append(f"{name} {math.expm1(mean):+.1%} ({each})")
    return (
        f"{search.objective.name} on each machine, compared with all of them "
        f"(with 95 % intervals): {', '.join(said)}"
    )


def slow_node(search: Search, names: Collection[str]) -> tuple[str, str] | None:
    """Return which of these machines is slower than the others beyond what is expected, and how much."""
    if len(search.trials) % CHECK_EVERY or len(names) < 2:
        return None
    found = recommendation.estimate_node_speeds(search.store.study, **search.given)
    if found is None:
        return None
    places = [place for place, name in enumerate(found.names) if name in names]
    if len(places) < 2:
        return None
    place = max(places, key=lambda one: found.mean[one])
    weights = np.zeros(len(found.mean))
    weights[places] = -1.0 / (len(places) - 1)
    weights[place] = 1.0
    slower = float(weights @ found.mean)
    error = math.sqrt(float(weights @ found.covariance @ weights))
    if found.counts[place] < MIN_ON_NODE or slower - 2 * error < SLOW:
        return None
    return found.names[place], f"is {math.expm1(slower):.0%} slower than the others"


def has_worked(search: Search, *, but_on: str) -> bool:
    """Whether the default has worked on another machine than this one."""
    return any(
        one.measured is not None and one.node != but_on
        for one in search.trials
        if search.problem.is_default(one.configuration)
    )
