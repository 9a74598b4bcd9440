"""Two objectives: what a search improves when it has both, and the front of what cannot be beaten in both.

In: histories whose launches tell a second objective. Out: a history with one target that weighs both; the
front of a study. Pure, but for reading the study.

A search draws a weight for each proposal and improves the augmented Chebyshev distance from the best of
each objective (ParEGO: Knowles, IEEE Transactions on Evolutionary Computation 10:50, 2006), of the
logarithms, each in units of what lies between the best launch and the median one:

    s = max(w z1, (1 - w) z2) + 0.05 (w z1 + (1 - w) z2),    z = (log y - best) / (median - best)

The maximum, and not the sum, because a sum never finds the points of a front that bends inwards.

The front is of posterior means: the lowest launches of many are luck in both directions at once. Of the
points the knee is the one that lies farthest below the line between the ends of the front.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tuner.sampling import averaged, blas, recommendation
from tuner.sampling.candidates import Candidates
from tuner.sampling.history import Column, History
from tuner.sampling.knowledge import NOTHING, Knowledge
from tuner.values import Configuration

Array = NDArray[np.float64]

AUGMENTED = 0.05
"""Share of the sum beside the maximum: without it points that are beaten in one objective count as equal."""
LEAST_SPREAD = 0.02
"""Between the best launch and the median one, on the log scale: less is noise."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Front:
    """Configurations that none beats in both objectives, from the best in the first to that in the second."""

    configurations: tuple[Configuration, ...]
    mean: Array  # (k, 2) logarithms of the objectives, minimised
    sd: Array  # (k, 2)

    @property
    def knee(self) -> int:
        """Position of the knee."""
        return knee(self.mean)


def scalarised(history: History, weight: float) -> History:
    """The history with one target that weighs both objectives.

    Args:
        history: whose launches tell a second objective.
        weight: of the first, 0 to 1.
    """
    assert history.second is not None
    both = np.column_stack([history.targets, history.second.values])
    best = both.min(axis=0)
    spread = np.maximum(np.median(both, axis=0) - best, LEAST_SPREAD)
    weighed = (both - best) / spread * np.array([weight, 1 - weight])
    distance = weighed.max(axis=1) + AUGMENTED * weighed.sum(axis=1)
    # Back to logarithms of a typical size, so that what is known of launches' noise holds.
    return dataclasses.replace(
        history,
        targets=distance * float(spread.mean()),
        efforts=np.full(len(distance), np.nan),
        second=None,
    )


def non_dominated(points: Array) -> NDArray[np.intp]:
    """Positions of the points (n, 2) that none beats: none is as good in both and better in one.

    From the lowest in the first coordinate to the lowest in the second; of equal points the first one.
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
    """Position of the knee of a front (k, 2) in the order of `non_dominated`; of equal ones the first."""
    span = np.ptp(points, axis=0)
    if len(points) < 3 or not (span > 0).all():
        return 0
    return int(np.argmin(((points - points.min(axis=0)) / span).sum(axis=1)))


def front(study: Study, *, candidates: Candidates, known: Knowledge = NOTHING) -> Front | None:
    """The front of a study, of configurations that were launched and keep to the limits.

    Args:
        study: whose launches tell a second objective.
        candidates: as the sampler had them.
        known: what was known of the first objective.

    Returns:
        None where no trial was ok, none kept to the limits, or an objective has no logarithm.
    """
    history = recommendation.history_of(study, candidates)
    if history is None or not len(history.targets) or history.scale != "log":
        return None
    if history.second is None or not np.isfinite(history.second.values).all():
        return None
    with blas.single_threaded():
        first = averaged.fitted(history, candidates, known).predict_observed()
        other = averaged.fitted(of_second(history, history.second), candidates).predict_observed()
        may_be = recommendation.likely_kept(history, candidates, known)
    failed = np.array([one in history.lost_configurations for one in history.configurations])
    if not failed[may_be].all():
        may_be = may_be & ~failed
    places = {history.configurations[place]: int(place) for place in np.flatnonzero(may_be)[::-1]}
    if not places:
        return None
    at = np.array(list(places.values()))
    mean = np.column_stack([first[0][at], other[0][at]])
    chosen = non_dominated(mean)
    return Front(
        configurations=tuple(history.configurations[at[place]] for place in chosen),
        mean=mean[chosen],
        sd=np.column_stack([first[1][at], other[1][at]])[chosen],
    )


def of_second(history: History, second: Column) -> History:
    """The history with the second objective for its target."""
    return dataclasses.replace(
        history,
        targets=second.values,
        errors=second.errors,
        efforts=np.full(len(second.values), np.nan),
        hyperparameters=(),
        second=None,
    )
