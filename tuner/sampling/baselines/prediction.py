"""Baseline without a search: the performance model's choice, evaluated repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.candidate_sampler import (
    CandidateSampler,
    Proposal,
    SamplerContext,
    check_prediction,
)
from tuner.sampling.candidates import CandidateSet
from tuner.values.configuration import Configuration

EQUAL = 1.0001


class PredictionSampler(CandidateSampler):
    """Sampler of the candidate with the best prediction, or of random ones without predictions."""

    options = ("first", "guess")

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 0,
        candidates: CandidateSet | None = None,
        first: Sequence[Configuration] = (),
        guess: Array | None = None,
    ) -> None:
        """Store the arguments; see `CandidateSampler` and `GpSampler`.

        Ties go to candidates in `first`.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates)
        if guess is not None:
            check_prediction(guess, candidates)
        self._prediction = guess
        self._first = tuple(first)

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose the candidate with the best prediction among those that did not fail."""
        if self._prediction is None or self._candidates is None:
            return context.at_random()
        chosen = self._best(context)
        is_new = chosen not in context.history.seen
        return Proposal(configuration=chosen, origin="guided" if is_new else "replicate")

    def _best(self, context: SamplerContext) -> Configuration:
        assert self._prediction is not None
        assert self._candidates is not None
        allowed = [context.candidates.configurations[int(place)] for place in context.not_lost]
        places = [self._candidates.index_of(cell) for cell in allowed]
        values = [np.inf if place is None else float(self._prediction[place]) for place in places]
        least = min(values)
        best = [cell for cell, value in zip(allowed, values, strict=True) if value <= EQUAL * least]
        return next((cell for cell in self._first if cell in best), best[0])
