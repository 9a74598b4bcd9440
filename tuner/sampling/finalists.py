"""The configurations that a study should measure once more before it says which is the best.

In: an Optuna study, of whatever sampler. Out: a few configurations that were launched, the
recommendation first, then those that are most often the best in draws from the posterior, and what
the process believes of them. Reads the study, writes nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tuner.sampling import averaged, blas, recommendation
from tuner.sampling.candidates import Candidates
from tuner.sampling.knowledge import NOTHING, Knowledge
from tuner.values import Configuration

Array = NDArray[np.float64]

LEAST_CHANCE = 0.1
"""Of being the best, below which a configuration is no finalist."""
DRAWS = 2000
WITHIN = 30
"""Configurations with the best means among which draws are made."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finalists:
    """Configurations, and what the search believes of them."""

    configurations: tuple[Configuration, ...]
    mean: Array  # (k,) of the logarithm of the objective, minimised
    covariance: Array  # (k, k)
    launch_sd: float


def finalists(
    study: Study,
    *,
    candidates: Candidates,
    known: Knowledge = NOTHING,
    but: Configuration | None = None,
    most: int,
) -> Finalists | None:
    """Those of a study; None where nothing worked, or its objective has no logarithm.

    Args:
        study: one objective.
        candidates: as the sampler had them.
        known: what was known before the study.
        but: a configuration that is measured anyway, and so no finalist: the default.
        most: how many.
    """
    history = recommendation.history_of(study, candidates)
    if history is None or not len(history.targets) or history.scale != "log":
        return None
    with blas.single_threaded():
        model = averaged.fitted(history, candidates, known)
        first = recommendation.recommend(study, candidates=candidates, known=known)
        may_be = recommendation.likely_kept(history, candidates, known)
        launched = {
            candidates.index_of(configuration): configuration
            for configuration, is_kept in zip(history.configurations, may_be, strict=True)
            if is_kept
            if configuration not in history.lost_configurations or configuration == first
        }
        launched.pop(None, None)  # what is no cell is not launched again as one
        sound = list(launched.values())
        at = np.array(list(launched), dtype=np.intp)
        if not len(at):
            return None
        mean, _ = model.predict(at)
        near = np.argsort(mean, kind="stable")[:WITHIN]
        covariance = model.covariance(at[near])
    chances = _chances(mean[near], covariance)
    ordered = sorted(
        (place for place in range(len(near)) if chances[place] >= LEAST_CHANCE),
        key=lambda place: -chances[place],
    )
    chosen = [place for place in range(len(near)) if sound[near[place]] == first]
    chosen += [place for place in ordered if place not in chosen and sound[near[place]] != but]
    chosen = chosen[:most]
    return Finalists(
        configurations=tuple(sound[near[place]] for place in chosen),
        mean=mean[near][chosen],
        covariance=covariance[np.ix_(chosen, chosen)],
        launch_sd=model.noise_sd,
    )


def _chances(mean: Array, covariance: Array) -> Array:
    """Share of draws (k,) in which each is the lowest."""
    lower = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(mean)))
    draws = mean[:, None] + lower @ np.random.default_rng(0).normal(size=(len(mean), DRAWS))
    return np.bincount(np.argmin(draws, axis=0), minlength=len(mean)) / DRAWS
