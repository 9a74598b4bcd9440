"""Shortlist: the best posterior mean, then the configurations most often best in posterior draws."""

from __future__ import annotations

import dataclasses

import numpy as np
from optuna.study import Study

from tuner.sampling import blas, recommendation
from tuner.sampling.arrays import Array
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates import model_averaging
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge
from tuner.values.configuration import Configuration

MIN_CHANCE = 0.1
DRAWS = 2000
NEAREST = 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """Shortlisted configurations and their posterior."""

    configurations: tuple[Configuration, ...]
    mean: Array  # (k,) of the logarithm of the objective, minimised
    covariance: Array  # (k, k)
    evaluation_sd: float
    """Sd of an evaluation among those of a round, which one machine measures."""


def make_shortlist(
    study: Study,
    *,
    candidates: CandidateSet,
    known: PriorKnowledge = NO_PRIOR_KNOWLEDGE,
    but: Configuration | None = None,
    most: int,
) -> Shortlist | None:
    """Choose at most `most` configurations, or return None without successes or logarithms.

    `but`, such as the default, is left out unless it is the best, as it is evaluated anyway.
    """
    history = recommendation.history_of(study, candidates)
    if history is None or not len(history.targets) or history.scale != "log":
        return None
    with blas.single_threaded():
        model = model_averaging.fit(history, candidates, known)
        first = recommendation.recommend(study, candidates=candidates, known=known)
        may_be = recommendation.likely_kept(history, candidates, known)
        evaluated = {
            candidates.index_of(configuration): configuration
            for configuration, is_kept in zip(history.configurations, may_be, strict=True)
            if is_kept
            if configuration not in history.lost_configurations or configuration == first
        }
        evaluated.pop(None, None)  # configurations that are not candidates
        sound = list(evaluated.values())
        at = np.array(list(evaluated), dtype=np.intp)
        if not len(at):
            return None
        mean, _ = model.predict(at)
        near = np.argsort(mean, kind="stable")[:NEAREST]
        covariance = model.covariance(at[near])
    chances = _chances(mean[near], covariance)
    ordered = sorted(
        (place for place in range(len(near)) if chances[place] >= MIN_CHANCE),
        key=lambda place: -chances[place],
    )
    chosen = [place for place in range(len(near)) if sound[near[place]] == first]
    chosen += [place for place in ordered if place not in chosen and sound[near[place]] != but]
    chosen = chosen[:most]
    return Shortlist(
        configurations=tuple(sound[near[place]] for place in chosen),
        mean=mean[near][chosen],
        covariance=covariance[np.ix_(chosen, chosen)],
        evaluation_sd=model.round_noise_sd,
    )


def _chances(mean: Array, covariance: Array) -> Array:
    lower = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(mean)))
    draws = mean[:, None] + lower @ np.random.default_rng(0).normal(size=(len(mean), DRAWS))
    return np.bincount(np.argmin(draws, axis=0), minlength=len(mean)) / DRAWS
