"""Probability that a configuration keeps the metric constraints.

A constrained metric's logarithm is modelled like the objective, with its prediction as prior mean
if it follows latency (`model_averaging`). The probabilities of several constraints are multiplied
(Gardner et al., ICML 2014).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tuner.metrics.metric_constraints import parse
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import Column, History
from tuner.sampling.surrogates import model_averaging, surrogate
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge
from tuner.sampling.surrogates.model_averaging import AveragedModel

UNKNOWN = float(np.log(0.5))
ENOUGH = 0.8
WORTH_TRYING = 0.5
"""Probability from which a candidate is scored; the best one often lies at a bound."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConstraintModel:
    """Models of the metric constraints."""

    observed: Array  # (n,) log P at the evaluations
    _models: tuple[AveragedModel | None, ...]

    @property
    def worth_trying(self) -> NDArray[np.bool_]:
        """Whether each evaluation (n,) belongs to a configuration worth improving on."""
        return np.asarray(self.observed >= np.log(WORTH_TRYING))

    def log_probability(self, at: Positions) -> Array:
        """Return log P (k,) at candidates; 0 without constraints."""
        found = np.zeros(len(at))
        for model in self._models:
            found += UNKNOWN if model is None else _log_kept(*model.predict(at))
        return found


def fit(
    history: History, candidates: CandidateSet, known: PriorKnowledge = NO_PRIOR_KNOWLEDGE
) -> ConstraintModel:
    """Fit a model per constraint."""
    models = tuple(
        model_averaging.fit(told, candidates, _knowledge(text, known))
        if len(told.targets)
        else None
        for text, slack in history.slacks.items()
        for told in (_of_limit(history, slack),)
    )
    places = [candidates.index_of(one) for one in history.configurations]
    at = np.array([place for place in places if place is not None], dtype=np.intp)
    kept = ConstraintModel(observed=np.empty(0), _models=models)
    observed = np.full(len(places), UNKNOWN if models else 0.0)
    observed[[place is not None for place in places]] = kept.log_probability(at)
    return dataclasses.replace(kept, observed=observed)


def observed_without_candidates(history: History) -> Array:
    """Return log P (n,) at the evaluations of a study without candidates."""
    found = np.zeros(len(history.targets))
    for slack in history.slacks.values():
        told = _of_limit(history, slack)
        if not len(told.targets):
            found += UNKNOWN
            continue
        found += _log_kept(*surrogate.fit(told).predict(history.vectors))
    return found


def recommendable(log_kept: Array, once: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which evaluations (n,) may be recommended.

    They are likely enough to keep the constraints, or else the likeliest of those that did.
    """
    enough = log_kept >= np.log(ENOUGH)
    if enough.any() or not once.any():
        return np.asarray(enough)
    return np.asarray(log_kept >= log_kept[once].max()) & once


def kept_once(history: History) -> NDArray[np.bool_]:
    """Return which evaluations (n,) kept all constraints."""
    kept = np.ones(len(history.targets), dtype=bool)
    for slack in history.slacks.values():
        kept &= slack.values <= 0  # False if unknown
    return kept


def _of_limit(history: History, log_excess: Column) -> History:
    told = np.isfinite(log_excess.values)
    return dataclasses.replace(
        history,
        configurations=tuple(
            one for one, is_told in zip(history.configurations, told, strict=True) if is_told
        ),
        vectors=history.vectors[told],
        targets=log_excess.values[told],
        errors=log_excess.errors[told],
        at_s=history.at_s[told],
        log_cpu_per_request=np.full(int(told.sum()), np.nan),
        scale="log",
    )


def _knowledge(text: str, known: PriorKnowledge) -> PriorKnowledge:
    limit = parse(text)
    if known.latency is None or not limit.of.grows:
        return NO_PRIOR_KNOWLEDGE
    sign = limit.of.grows * (1 if limit.is_upper else -1)
    return PriorKnowledge(prior_mean=sign * known.latency)


def _log_kept(mean: Array, sd: Array) -> Array:
    return np.asarray(log_ndtr(-mean / sd))
