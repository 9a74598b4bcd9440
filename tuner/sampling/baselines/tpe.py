"""Optuna's tree-structured Parzen estimator, as a candidate sampler.

With candidates, the first `initial` trials are random; later ones use the candidate nearest to
TPE's point. Unsuccessful (PRUNED) trials count as the worst; with metric constraints, Optuna 5
orders them by their violation.

TPE is multivariate, as is the default of Optuna 5, whose documentation reports that this
outperforms independent parameters; all else is Optuna's default. Ascending numbers that a study
stores as categories are whole numbers to TPE, by rank, so that it knows which are neighbours.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext, stream
from tuner.values.configuration import Configuration

_TPE_STREAM = 3


class TpeSampler(CandidateSampler):
    """`optuna.samplers.TPESampler`, restricted to the candidates."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose TPE's point, or the nearest candidate."""
        ended = sum(
            trial.state in {TrialState.COMPLETE, TrialState.PRUNED}
            for trial in context.study.get_trials(deepcopy=False)
        )
        names = context.candidates.names
        if ended < context.initial or not names <= context.distributions.keys():
            return context.at_random()
        said = self._say(context)
        index = context.candidates.index_of(said)
        vector = context.candidates.vector_of(said)
        if index is None and context.candidates.is_complete:
            if vector is None:
                return context.at_random()
            index = context.candidates.nearest(
                vector, np.arange(len(context.candidates.configurations))
            )
        chosen = said if index is None else context.candidates.configurations[index]
        return Proposal(
            configuration=chosen,
            origin="replicate" if chosen in context.history.seen else "guided",
        )

    def draw(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Draw by TPE a parameter that only some trials have."""
        return self._tpe(trial, zlib.crc32(name.encode())).sample_independent(
            study, trial, name, distribution
        )

    def _say(self, context: SamplerContext) -> Configuration:
        tpe, study, trial = self._tpe(context.trial), context.study, context.trial
        space = {
            name: _by_rank(dist)
            for name, dist in tpe.infer_relative_search_space(study, trial).items()
            if name in context.candidates.names
        }
        said = tpe.sample_relative(study, trial, space) if space else {}
        for name in sorted(context.candidates.names - said.keys()):
            by_rank = _by_rank(context.distributions[name])
            said[name] = tpe.sample_independent(study, trial, name, by_rank)
        return Configuration(said)

    def _tpe(self, trial: FrozenTrial, *path: int) -> TPESampler:
        seed = int(stream(self._seed, _TPE_STREAM, trial.number, *path).integers(2**31 - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # before Optuna 5
            return TPESampler(seed=seed, n_startup_trials=self._initial, multivariate=True)


class _Ranks(IntDistribution):
    """Whole numbers from 0 that stand for choices, which trials have."""

    def __init__(self, choices: Sequence[Any]) -> None:
        super().__init__(0, len(choices) - 1)
        self._choices = choices

    def to_internal_repr(self, param_value_in_external_repr: Any) -> float:
        return float(self._choices.index(param_value_in_external_repr))

    def to_external_repr(self, param_value_in_internal_repr: float) -> Any:
        return self._choices[int(param_value_in_internal_repr)]


def _by_rank(distribution: BaseDistribution) -> BaseDistribution:
    """Return whole numbers in place of categories that are ascending numbers."""
    if not isinstance(distribution, CategoricalDistribution):
        return distribution
    choices = distribution.choices
    numbers = [n for n in choices if isinstance(n, int | float) and not isinstance(n, bool)]
    is_ordered = len(numbers) == len(choices) and numbers == sorted(numbers)
    return _Ranks(choices) if is_ordered else distribution
