"""Two objectives: a scalarised history for the search, and a study's Pareto front.

Each proposal draws a weight w and reduces the augmented Chebyshev distance from the best of each
objective (ParEGO: Knowles, IEEE TEVC 10:50, 2006), on log objectives:

    s = max(w z1, (1 - w) z2) + 0.05 (w z1 + (1 - w) z2),    z = (log y - best) / (median - best)

A plain sum would never find the points of a concave front. The knee lies farthest below the line
between the front's ends.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from optuna.study import Study

from tuner.sampling import blas, recommendation
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import Column, History
from tuner.sampling.surrogates import model_averaging
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge
from tuner.values.configuration import Configuration

AUGMENTED = 0.05
"""Weight of the sum; without it, dominated points could count as equally good."""
MIN_SPREAD = 0.02


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParetoFront:
    """Non-dominated configurations, from best in the first objective to best in the second."""

    configurations: tuple[Configuration, ...]
    mean: Array  # (k, 2) logarithms of the objectives, minimised
    sd: Array  # (k, 2)

    @property
    def knee(self) -> int:
        """Position of the knee."""
        return knee(self.mean)


def scalarise(history: History, weight: float) -> History:
    """Combine both objectives into one target; `weight` (0 to 1) belongs to the first."""
    assert history.second is not None
    both = np.column_stack([history.targets, history.second.values])
    best = both.min(axis=0)
    spread = np.maximum(np.median(both, axis=0) - best, MIN_SPREAD)
    weighed = (both - best) / spread * np.array([weight, 1 - weight])
    distance = weighed.max(axis=1) + AUGMENTED * weighed.sum(axis=1)
    # Back to logarithms of a typical size, so the noise priors hold.
    return dataclasses.replace(
        history,
        targets=distance * float(spread.mean()),
        log_cpu_per_request=np.full(len(distance), np.nan),
    )


def non_dominated(points: Array) -> Positions:
    """Return the positions of non-dominated points (n, 2), ascending in the first coordinate.

    Of identical points, only the first is returned.
    """
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    lowest = np.inf
    for place in order:
        if points[place, 1] < lowest:
            kept.append(int(place))
            lowest = float(points[place, 1])
    return np.array(kept, dtype=np.intp)


def knee(points: Array) -> int:
    """Return the knee's index in a front (k, 2), as returned by `non_dominated`."""
    span = np.ptp(points, axis=0)
    if len(points) < 3 or not (span > 0).all():
        return 0
    return int(np.argmin(((points - points.min(axis=0)) / span).sum(axis=1)))


def pareto_front(
    study: Study, *, candidates: CandidateSet, known: PriorKnowledge = NO_PRIOR_KNOWLEDGE
) -> ParetoFront | None:
    """Return the Pareto front of evaluated configurations that keep the metric constraints.

    `known` concerns the first objective. None if the front is empty, or an objective has no
    logarithm.
    """
    history = recommendation.history_of(study, candidates)
    if history is None or not len(history.targets) or history.scale != "log":
        return None
    if history.second is None or not np.isfinite(history.second.values).all():
        return None
    with blas.single_threaded():
        first = model_averaging.fit(history, candidates, known).predict_observed()
        other = model_averaging.fit(
            of_second(history, history.second), candidates
        ).predict_observed()
        may_be = recommendation.likely_kept(history, candidates, known)
    may_be = recommendation.never_failed(history, may_be)
    places = {history.configurations[place]: int(place) for place in np.flatnonzero(may_be)[::-1]}
    if not places:
        return None
    at = np.array(list(places.values()))
    mean = np.column_stack([first[0][at], other[0][at]])
    chosen = non_dominated(mean)
    return ParetoFront(
        configurations=tuple(history.configurations[at[place]] for place in chosen),
        mean=mean[chosen],
        sd=np.column_stack([first[1][at], other[1][at]])[chosen],
    )


def of_second(history: History, second: Column) -> History:
    """Return the history with the second objective as the target."""
    return dataclasses.replace(
        history,
        targets=second.values,
        errors=second.errors,
        log_cpu_per_request=np.full(len(second.values), np.nan),
    )
