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
    """Propose the best predicted candidate; random ones without predictions."""

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
        if guess is not None and (candidates is None or len(guess) != len(candidates.cells)):
            raise UsageError("guess: expected one value for each candidate")
        self._guess = guess
        self._first = tuple(first)

    def propose(self, situation: SamplerContext) -> Proposal:
        """Propose the best predicted candidate that did not fail."""
        if self._guess is None or self._candidates is None:
            return situation.at_random()
        chosen = self._best(situation)
        is_new = chosen not in situation.history.seen
        return Proposal(configuration=chosen, origin="guided" if is_new else "replicate")

    def _best(self, situation: SamplerContext) -> Configuration:
        assert self._guess is not None
        assert self._candidates is not None
        allowed = [situation.candidates.cells[int(place)] for place in situation.not_lost]
        places = [self._candidates.index_of(cell) for cell in allowed]
        values = [np.inf if place is None else float(self._guess[place]) for place in places]
        least = min(values)
        best = [cell for cell, value in zip(allowed, values, strict=True) if value <= EQUAL * least]
        preferred = (cell for cell in self._first if cell in best)
        return next(preferred, best[0])
