"""An additive model of the latency: every knob for itself, fitted by ridge regression.

The logarithm of the objective is a sum of one curve per knob, so latencies are products of factors. A
curve is a polygon over the knob's levels: with up to `KNOTS` levels that is a value of its own for each
(one-hot), with more a straight line between knots. A straight line per knob is penalised less than the
polygon's deviations from it, so that few launches give slopes and many give shapes. The strength of
the penalty is the one with the least leave-one-out error, which ridge regression gives in closed form.

After `initial` random trials a share `EXPLORE` of the proposals is random; the others are the cells with the
best prediction that were not run. It is the plainest model that learns from every launch, and a
yardstick: what knobs only do together it cannot see, nor how sure it is. A lost trial is told as the
worst value that was seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.told import is_too_early, told

Array = NDArray[np.float64]

EXPLORE = 0.2
"""Probability of a random proposal."""
KNOTS = 8
"""Most points of a knob's polygon."""
SLOPE = 0.1
"""Penalty of a knob's straight line, as a share of that of the deviations from it."""
STRENGTHS = np.logspace(-3, 2, 11)
"""Penalties that are tried; targets have unit variance."""


class RidgeSampler(CellSampler):
    """The best predicted cell that was not run, now and then a random one."""

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first and now and then, else the best predicted one."""
        explores = situation.rng.random() < EXPLORE
        if is_too_early(situation) or explores:
            return situation.at_random()
        vectors, targets = told(situation)
        among = situation.unseen
        knobs = situation.candidates.vectors[:, : situation.candidates.design_width]
        predicted = fitted(vectors, targets, knots_of(knobs)).predict(knobs[among])
        chosen = situation.candidates.cells[int(among[int(np.argmin(predicted))])]
        return Proposal(configuration=chosen, origin="guided")


class Additive:
    """A sum of one polygon per entry of a vector.

    Args:
        knots: positions of each entry's polygon, ascending.
        coefficients: of the basis, see `basis`.
        middle: the mean of the targets.
    """

    def __init__(self, knots: list[Array], coefficients: Array, middle: float) -> None:
        self._knots = knots
        self._coefficients = coefficients
        self._middle = middle

    def predict(self, vectors: Array) -> Array:
        """Targets (m,) of vectors (m, d)."""
        return np.asarray(self._middle + basis(vectors, self._knots) @ self._coefficients)


def fitted(vectors: Array, targets: Array, knots: list[Array]) -> Additive:
    """Ridge regression with the penalty that leaves the least leave-one-out error.

    Args:
        vectors: (n, d).
        targets: (n,).
        knots: positions of each entry's polygon.
    """
    rows = basis(vectors, knots)
    spread = float(np.std(targets)) or 1.0
    middle = float(np.mean(targets))
    scaled = (targets - middle) / spread
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    best, coefficients = np.inf, np.zeros(rows.shape[1])
    for strength in STRENGTHS:
        kept = values**2 / (values**2 + strength)
        leverage = (left**2) @ kept + 1 / len(targets)  # the mean is fitted as well
        fit = left @ (kept * (left.T @ scaled))
        apart = (scaled - fit) / np.maximum(1 - leverage, 1e-6)
        if (error := float(np.mean(apart**2))) < best:
            best = error
            shrunken = values / (values**2 + strength) * (left.T @ scaled)
            coefficients = spread * (right.T @ shrunken)
    return Additive(knots, coefficients, middle)


def knots_of(vectors: Array) -> list[Array]:
    """Up to `KNOTS` positions for each entry: its levels, or quantiles of them."""
    found = []
    for column in vectors.T:
        levels = np.unique(column)
        if len(levels) > KNOTS:
            levels = np.unique(np.quantile(levels, np.linspace(0, 1, KNOTS)))
        found.append(levels)
    return found


def basis(vectors: Array, knots: list[Array]) -> Array:
    """Columns of the model: for each entry its straight line, then a hat on each knot.

    A hat is 1 on its knot and 0 on the others. A column is scaled up where its coefficient is to be
    penalised less: the straight lines by 1 / sqrt(`SLOPE`).
    """
    columns = []
    for column, places in zip(vectors.T, knots, strict=True):
        columns.append((column[:, None] - np.mean(places)) / np.sqrt(SLOPE))
        hats = [np.interp(column, places, one) for one in np.eye(len(places))]
        columns.append(np.column_stack(hats))
    return np.hstack(columns)
