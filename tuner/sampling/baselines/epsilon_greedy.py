"""Epsilon-greedy search: try a random new candidate, or repeat the one with the best mean."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tuner.errors import UsageError
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import History
from tuner.values.configuration import Configuration

EPSILON = 0.5
"""Probability of exploring: half, as repeats teach nothing about the space."""


class EpsilonGreedySampler(CandidateSampler):
    """Sampler that explores with probability epsilon, and otherwise exploits."""

    options = ("epsilon",)

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: CandidateSet | None = None,
        epsilon: float = EPSILON,
    ) -> None:
        super().__init__(seed=seed, initial=initial, candidates=candidates)
        if not 0 <= epsilon <= 1:
            raise UsageError(
                f"epsilon is {epsilon!r}; expected a probability from 0 to 1, for example {EPSILON}"
            )
        self._epsilon = epsilon

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose a random candidate, or the best one again."""
        is_initial = context.history.trial_count < context.initial
        explores = context.rng.random() < self._epsilon
        if is_initial or explores or not len(context.history.targets):
            return context.at_random()
        return Proposal(configuration=incumbent(context.history), origin="replicate")


def incumbent(history: History) -> Configuration:
    """Return the configuration with the lowest mean target, or the earliest if several tie."""
    targets: dict[Configuration, list[float]] = defaultdict(list)
    for configuration, target in zip(history.configurations, history.targets, strict=True):
        targets[configuration].append(float(target))
    return min(targets, key=lambda configuration: float(np.mean(targets[configuration])))
