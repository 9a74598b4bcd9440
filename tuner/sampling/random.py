"""Random search: the baseline of every other sampler.

Each feasible candidate once in random order (the stronger baseline), then replicates. In an
infinite space: independent draws.
"""

from __future__ import annotations

from tuner.sampling.candidate_sampler import CellSampler, Proposal, Situation


class RandomSampler(CellSampler):
    """Uniform over untried candidates."""

    searches_fronts = True

    def propose(self, situation: Situation) -> Proposal:
        """Propose an untried candidate."""
        return situation.at_random()
