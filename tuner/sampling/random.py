"""Random search: the yardstick that every other sampler must beat.

With candidates, or a finite grid of distributions: each feasible cell once, in random order,
until all were run; then any of them, marked as a replicate. Drawing without replacement is the
stronger baseline and costs nothing, so a comparison with it is fair. In an endless space:
independent draws by each parameter's own law, as plain random search does.
"""

from __future__ import annotations

from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation


class RandomSampler(CellSampler):
    """Uniform over the feasible cells that were not run."""

    searches_fronts = True

    def propose(self, situation: Situation) -> Proposal:
        """A cell that no trial has had."""
        return situation.at_random()
