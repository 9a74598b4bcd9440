"""Random search: each feasible candidate once in random order, then replicates."""

from __future__ import annotations

from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext


class RandomSampler(CandidateSampler):
    """Sampler that draws uniformly from the untried candidates."""

    searches_fronts = True

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose an untried candidate."""
        return context.at_random()
