"""What samplers of other libraries are told of a study: points of the unit cube and their targets.

In: a situation. Out: rows (n, d) without features, and targets (n,) that are minimised: logarithms of
the objective where all are positive, as our own process sees them, so that a comparison is of methods
and not of scales. These libraries know no feasibility: a lost trial is told as the worst value that was
seen. Pure.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.expected_improvement import gain_ratio

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


def at_random(situation: Situation) -> Proposal:
    """A random cell; where all were run, one of them again, from which no improvement is expected."""
    found = situation.at_random()
    if found.origin != "replicate":
        return found
    return dataclasses.replace(found, facts=expectation(np.zeros(1)))


def expectation(gains: Array) -> dict[str, Any]:
    """What ends a search early: the largest expected improvement (m,) as a share of the best."""
    return {"largest_expected_improvement": float(np.max(gains))}


class Asked(NamedTuple):
    """What a library answers."""

    point: Array
    """(d,) where it would look next."""
    expected: tuple[Array, Array] | None = None
    """Mean (m,) and standard deviation (m,) that it expects of the cells; None where it does not tell them."""


class PointSampler(CellSampler):
    """Of a library that is told points of the unit cube and asked for one: the nearest cell that was not run.

    What it knows is made anew for each proposal and seeded by the trial's stream, so nothing is lost on
    resume.
    """

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first, then the cell nearest to the point that the library asks for."""
        if is_too_early(situation):
            return at_random(situation)
        candidates = situation.candidates
        vectors, targets = told(situation)
        cells = candidates.vectors[situation.unseen, : candidates.design_width]
        found = self.asked(vectors, targets, cells, situation.rng)
        facts = {}
        if found.expected is not None:
            incumbent = float(np.min(targets))
            is_log = situation.history.scale == "log"
            facts = expectation(gain_ratio(*found.expected, incumbent, is_log=is_log))
        return Proposal(
            configuration=candidates.realise(found.point, situation.unseen),
            origin="guided",
            facts=facts,
        )

    @abc.abstractmethod
    def asked(
        self, vectors: Array, targets: Array, cells: Array, rng: np.random.Generator
    ) -> Asked:
        """What the library asks for after it was told (n, d) and (n,), and expects of cells (m, d)."""
