"""What samplers of other libraries are told of a study: points of the unit cube and their targets.

In: a situation. Out: rows (n, d) without features, and targets (n,) that are minimised: logarithms of
the objective where all are positive, as our own process sees them, so that a comparison is of methods
and not of scales. These libraries know no feasibility: a lost trial is told as the worst value that was
seen. Pure.
"""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import NDArray

from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation

Array = NDArray[np.float64]


def told(situation: Situation) -> tuple[Array, Array]:
    """Vectors (n, d) of all trials that ended, the lost ones last, and their targets (n,)."""
    history = situation.history
    knobs = slice(situation.candidates.design_width)
    vectors = np.vstack([history.vectors[:, knobs], history.lost_vectors[:, knobs]])
    worst = np.full(len(history.lost_vectors), np.max(history.targets, initial=-np.inf))
    return vectors, np.concatenate([history.targets, worst])


def is_too_early(situation: Situation) -> bool:
    """Whether a random cell is tried: at first, while nothing worked, and where all cells were run."""
    history = situation.history
    is_initial = history.earlier < situation.initial
    return is_initial or not len(history.targets) or not len(situation.unseen)


class PointSampler(CellSampler):
    """Of a library that is told points of the unit cube and asked for one: the nearest cell that was not run.

    What it knows is made anew for each proposal and seeded by the trial's stream, so nothing is lost on
    resume.
    """

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first, then the cell nearest to the point that the library asks for."""
        if is_too_early(situation):
            return situation.at_random()
        point = self.asked(*told(situation), situation.rng)
        return Proposal(
            configuration=situation.candidates.realise(point, situation.unseen), origin="guided"
        )

    @abc.abstractmethod
    def asked(self, vectors: Array, targets: Array, rng: np.random.Generator) -> Array:
        """The point (d,) that the library asks for after it was told these (n, d) and (n,)."""
