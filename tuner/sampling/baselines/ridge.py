"""Additive model of the latency: one curve per knob, fitted by ridge regression.

The log objective is a sum of one polyline per knob, with a knot per level, up to `KNOTS`. The
penalty, smaller for straight lines, minimises the leave-one-out error.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.baselines.external_sampler import is_too_early, observations
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext

EXPLORE = 0.2
KNOTS = 8
SLOPE = 0.1
"""Penalty on a straight line relative to deviations from it."""
STRENGTHS = np.logspace(-3, 2, 11)


class RidgeSampler(CandidateSampler):
    """Sampler of the untried candidate with the best prediction, or of a random one."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose at random first and sometimes later, otherwise by prediction."""
        explores = context.rng.random() < EXPLORE
        if is_too_early(context) or explores:
            return context.at_random()
        vectors, targets = observations(context)
        among = context.untried
        knobs = context.candidates.vectors[:, : context.candidates.design_width]
        predicted = fit(vectors, targets, knots_of(knobs)).predict(knobs[among])
        chosen = context.candidates.configurations[int(among[int(np.argmin(predicted))])]
        return Proposal(configuration=chosen, origin="guided")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Additive:
    """Sum of one polyline per vector entry, with ascending `knots`."""

    knots: list[Array]
    coefficients: Array
    middle: float

    def predict(self, vectors: Array) -> Array:
        """Predict the targets (m,) of vectors (m, d)."""
        return np.asarray(self.middle + basis(vectors, self.knots) @ self.coefficients)


def fit(vectors: Array, targets: Array, knots: list[Array]) -> Additive:
    """Fit with the penalty that minimises the leave-one-out error."""
    rows = basis(vectors, knots)
    spread = float(np.std(targets)) or 1.0
    middle = float(np.mean(targets))
    scaled = (targets - middle) / spread
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    best, coefficients = np.inf, np.zeros(rows.shape[1])
    for strength in STRENGTHS:
        kept = values**2 / (values**2 + strength)
        leverage = (left**2) @ kept + 1 / len(targets)  # the mean is fitted too
        fit = left @ (kept * (left.T @ scaled))
        apart = (scaled - fit) / np.maximum(1 - leverage, 1e-6)
        if (error := float(np.mean(apart**2))) < best:
            best = error
            shrunken = values / (values**2 + strength) * (left.T @ scaled)
            coefficients = spread * (right.T @ shrunken)
    return Additive(knots, coefficients, middle)


def knots_of(vectors: Array) -> list[Array]:
    """Return up to `KNOTS` positions per entry: its levels or their quantiles."""
    found = []
    for column in vectors.T:
        levels = np.unique(column)
        if len(levels) > KNOTS:
            levels = np.unique(np.quantile(levels, np.linspace(0, 1, KNOTS)))
        found.append(levels)
    return found


def basis(vectors: Array, knots: list[Array]) -> Array:
    """Return, for each entry, a straight line over sqrt(`SLOPE`) and a hat function per knot."""
    columns = []
    for column, places in zip(vectors.T, knots, strict=True):
        columns.append((column[:, None] - np.mean(places)) / np.sqrt(SLOPE))
        hats = [np.interp(column, places, one) for one in np.eye(len(places))]
        columns.append(np.column_stack(hats))
    return np.hstack(columns)
