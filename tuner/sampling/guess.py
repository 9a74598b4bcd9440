"""The prediction alone, without a search: what a few seconds' profile and the closed form would choose.

After the default it launches the cell with the best prediction, again and again (marked replicates), so
that a study of it says what one gets by computing instead of searching. Of cells whose predictions are
equal it takes one that the hub prefers: that nearest to the default. Where there is no prediction
(another engine, an objective that goes with no round trip, no profile) its proposals are random, and
the study notes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import WrongUse
from tuner.sampling.candidates import LIMIT, Candidates
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.values import Configuration

Array = NDArray[np.float64]
EQUAL = 1.0001
"""Predictions whose ratio is below it are the same."""


class GuessSampler(CellSampler):
    """The cell with the best prediction; random cells without one."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 0,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
        first: Sequence[Configuration] = (),
        guess: Array | None = None,
    ) -> None:
        """Keep what is given; see `CellSampler`.

        Args:
            seed: 0 or more.
            initial: counts only where there is no prediction.
            candidates: the cells that may be proposed.
            limit: largest grid of distributions that is listed whole.
            first: cells that are preferred among those with equal predictions.
            guess: (m,) of the candidates, the predicted objective, minimised and positive.

        Raises:
            WrongUse: the guess is not one of these candidates.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates, limit=limit)
        if guess is not None and (candidates is None or len(guess) != len(candidates.cells)):
            raise WrongUse("guess: expected one value for each candidate")
        self._guess = guess
        self._first = tuple(first)

    def propose(self, situation: Situation) -> Proposal:
        """The cell with the best prediction among those that did not fail."""
        if self._guess is None or self._candidates is None:
            return situation.at_random()
        chosen = self._best(situation)
        is_new = chosen not in situation.history.seen
        return Proposal(configuration=chosen, origin="guided" if is_new else "replicate")

    def _best(self, situation: Situation) -> Configuration:
        assert self._guess is not None
        assert self._candidates is not None
        allowed = [situation.candidates.cells[int(place)] for place in situation.not_lost]
        places = [self._candidates.index_of(cell) for cell in allowed]
        values = [np.inf if place is None else float(self._guess[place]) for place in places]
        least = min(values)
        best = [cell for cell, value in zip(allowed, values, strict=True) if value <= EQUAL * least]
        preferred = (cell for cell in self._first if cell in best)
        return next(preferred, best[0])
