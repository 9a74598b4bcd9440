"""Baseline without a search: the performance model's choice, evaluated again and again.

Without a prediction (another engine, an objective unrelated to latency, no profile) proposals are
random, and the study notes that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import UsageError
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.candidates import CandidateSet
from tuner.values.configuration import Configuration

Array = NDArray[np.float64]
EQUAL = 1.0001


class PredictionSampler(CandidateSampler):
    """Propose the candidate with the best prediction, or a random one without predictions."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 0,
        candidates: CandidateSet | None = None,
        first: Sequence[Configuration] = (),
        guess: Array | None = None,
    ) -> None:
        """Store the arguments; see `CandidateSampler`.

        `first` lists candidates preferred among equal predictions; `guess` (m,) is the predicted
        objective, minimised and positive.

        Raises:
            UsageError: the predictions do not match the candidates.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates)
        if guess is not None and (
            candidates is None or len(guess) != len(candidates.configurations)
        ):
            raise UsageError("guess: expected one value for each candidate")
        self._prediction = guess
        self._first = tuple(first)

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose the best predicted candidate that did not fail."""
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
        preferred = (cell for cell in self._first if cell in best)
        return next(preferred, best[0])
