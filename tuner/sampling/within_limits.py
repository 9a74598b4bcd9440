"""Probability that a configuration keeps to the limits, by processes of the figures that are limited.

In: a history whose launches tell by how much they lie beyond each limit, the cells, what was predicted.
Out: log P(all limits are kept) at cells and at the launches. Pure.

The logarithm of a limited figure is modelled as the objective is: a process with the noise of launches,
and where the figure goes with the round trip a second one that has its prediction for its mean
(`averaged`). Of one limit P is the normal probability that the figure itself, without the noise of one
launch, lies within it; of several it is their product (Gardner et al., "Bayesian Optimization with
Inequality Constraints", ICML 2014).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tuner.limits import parse
from tuner.sampling import averaged, surrogate
from tuner.sampling.averaged import Averaged
from tuner.sampling.candidates import Candidates
from tuner.sampling.gaussian_process import Process
from tuner.sampling.history import Column, History
from tuner.sampling.knowledge import NOTHING, Knowledge
from tuner.sampling.surrogate import Seen

Array = NDArray[np.float64]

UNKNOWN = float(np.log(0.5))
"""Log P where no launch tells."""
ENOUGH = 0.8
"""Probability of keeping all limits at which a configuration is recommended."""
WORTH_TRYING = 0.5
"""At which a search weighs what a launch of it would gain: the best often lies at a limit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """What is believed of the limits."""

    observed: Array  # (n,) log P at the launches of the history
    once: NDArray[np.bool_]  # (n,) whether the launch itself kept to all of them
    _models: tuple[Averaged | None, ...]

    @property
    def worth_trying(self) -> NDArray[np.bool_]:
        """Which launches (n,) are of configurations that a search improves on."""
        return np.asarray(self.observed >= np.log(WORTH_TRYING))

    @property
    def is_any_worth(self) -> bool:
        """Whether there is something to improve on; else being feasible is all that counts."""
        return bool(self.worth_trying.any())

    def log_probability(self, at: NDArray[np.intp]) -> Array:
        """Log P (k,) at cells, by position; 0 without limits."""
        found = np.zeros(len(at))
        for model in self._models:
            found += UNKNOWN if model is None else _log_kept(*model.predict(at))
        return found


def fitted(history: History, candidates: Candidates, known: Knowledge = NOTHING) -> Kept:
    """The models of a history's limits; of none where it has none, or nothing was observed."""
    models = tuple(
        averaged.fitted(told, candidates, _knowledge(text, known)) if len(told.targets) else None
        for text, slack in history.slacks.items()
        for told in (_of_limit(history, slack),)
    )
    places = [candidates.index_of(one) for one in history.configurations]
    at = np.array([place for place in places if place is not None], dtype=np.intp)
    kept = Kept(observed=np.empty(0), once=kept_once(history), _models=models)
    observed = np.full(len(places), UNKNOWN if models else 0.0)
    observed[[place is not None for place in places]] = kept.log_probability(at)
    return dataclasses.replace(kept, observed=observed)


def observed_without_cells(history: History) -> Array:
    """Log P (n,) at the launches of a study whose cells are not known."""
    found = np.zeros(len(history.targets))
    for slack in history.slacks.values():
        told = _of_limit(history, slack)
        if not len(told.targets):
            found += UNKNOWN
            continue
        process: Process = surrogate.fitted(Seen.of(told))
        found += _log_kept(*process.predict(history.vectors))
    return found


def recommendable(log_kept: Array, once: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which launches (n,) are of a configuration that may be recommended.

    Those that are likely enough to keep to the limits; where none is, the likeliest of those that did so
    at least once; none where none did.
    """
    enough = log_kept >= np.log(ENOUGH)
    if enough.any() or not once.any():
        return np.asarray(enough)
    return np.asarray(log_kept >= log_kept[once].max()) & once


def kept_once(history: History) -> NDArray[np.bool_]:
    """Which launches (n,) kept to all limits themselves."""
    kept = np.ones(len(history.targets), dtype=bool)
    for slack in history.slacks.values():
        kept &= slack.values <= 0  # false where it is not known
    return kept


def _of_limit(history: History, slack: Column) -> History:
    """The launches that tell their distance from a limit, with it for their target."""
    told = np.isfinite(slack.values)
    return dataclasses.replace(
        history,
        configurations=tuple(
            one for one, is_told in zip(history.configurations, told, strict=True) if is_told
        ),
        vectors=history.vectors[told],
        targets=slack.values[told],
        errors=slack.errors[told],
        at_s=history.at_s[told],
        efforts=np.full(int(told.sum()), np.nan),
        headroom=history.headroom[told],
        scale="log",
        scale_reason="",
        hyperparameters=(),
        slacks={},
        second=None,
    )


def _knowledge(text: str, known: Knowledge) -> Knowledge:
    """What is predicted of the limited figure: the round trip, where it goes with it."""
    limit = parse(text)
    if known.latency is None or not limit.of.grows:
        return NOTHING
    sign = limit.of.grows * (1 if limit.is_upper else -1)
    return Knowledge(guess=sign * known.latency)


def _log_kept(mean: Array, sd: Array) -> Array:
    return np.asarray(log_ndtr(-mean / sd))
