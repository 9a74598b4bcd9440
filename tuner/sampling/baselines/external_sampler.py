"""Base class for samplers from other libraries: points of the unit cube with targets.

Unsuccessful trials count as the worst value, as the libraries ignore feasibility.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.surrogates.expected_improvement import gain_ratio


def observations(context: SamplerContext) -> tuple[Array, Array]:
    """Return vectors (n, d) and targets (n,) of all ended trials, unsuccessful ones last."""
    history = context.history
    knobs = slice(context.candidates.design_width)
    vectors = np.vstack([history.vectors[:, knobs], history.lost_vectors[:, knobs]])
    worst = np.full(len(history.lost_vectors), np.max(history.targets, initial=-np.inf))
    return vectors, np.concatenate([history.targets, worst])


def is_too_early(context: SamplerContext) -> bool:
    """Whether to propose at random: at first, without successes, or if nothing is untried."""
    history = context.history
    is_taught = history.trial_count >= context.initial and len(history.targets)
    return not is_taught or not len(context.untried)


def at_random(context: SamplerContext) -> Proposal:
    """Propose a random candidate."""
    found = context.at_random()
    if found.origin != "replicate":
        return found
    return dataclasses.replace(found, facts=expectation(np.zeros(1)))


def expectation(gains: Array) -> dict[str, Any]:
    """Return the largest of the expected improvements (m,) as a fact that can end a search."""
    return {"largest_expected_improvement": float(np.max(gains))}


class ExternalProposal(NamedTuple):
    """Point that a library proposes."""

    point: Array
    expected: tuple[Array, Array] | None = None
    """Mean and sd (m,) at the candidates, if known."""


class ExternalSampler(CandidateSampler):
    """Sampler of the untried candidate nearest to a library's point."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose at random first, then near the library's point."""
        if is_too_early(context):
            return at_random(context)
        candidates = context.candidates
        vectors, targets = observations(context)
        cells = candidates.vectors[context.untried, : candidates.design_width]
        found = self.ask_library(vectors, targets, cells, context.rng)
        facts = {}
        if found.expected is not None:
            incumbent = float(np.min(targets))
            is_log = context.history.scale == "log"
            facts = expectation(gain_ratio(*found.expected, incumbent, is_log=is_log))
        return Proposal(
            configuration=candidates.realise(found.point, context.untried),
            origin="guided",
            facts=facts,
        )

    @abc.abstractmethod
    def ask_library(
        self, vectors: Array, targets: Array, candidates: Array, rng: np.random.Generator
    ) -> ExternalProposal:
        """Return the library's proposal given (n, d) and (n,), with its predictions at (m, d)."""
