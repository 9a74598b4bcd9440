"""GPy's regression with expected improvement over all cells: the search of the study that this tuner follows.

It sees logarithms of the objective (where all are positive) and the knobs alone, without what follows
from them; a lost trial is told as the worst value that was seen, as it knows no feasibility. The fit
(`gp_model`) has priors, since maximum likelihood on a handful of launches is no model. GPy is an extra.
"""

from __future__ import annotations

import numpy as np

from tuner.sampling import gp_model
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.expected_improvement import gain_ratio, log_expected_improvement
from tuner.sampling.told import at_random, expectation, is_too_early, told


class GpySampler(CellSampler):
    """GPy's GP, Matern-5/2, and expected improvement on the cells that were not run."""

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first, then the new cell with the largest expected improvement."""
        history, candidates = situation.history, situation.candidates
        if is_too_early(situation):
            return at_random(situation)
        knobs = slice(candidates.design_width)
        vectors, targets = told(situation)
        noise_sd = gp_model.NOISE_SD
        if history.scale == "raw":
            noise_sd *= max(float(np.std(targets)), 1e-9)
        process = gp_model.fit(
            vectors, targets, noise_sd=noise_sd, start=history.hyperparameters
        ).expecting(history.pending_vectors[:, knobs])
        mean, sd = process.predict(candidates.vectors[situation.unseen, knobs])
        incumbent = float(np.min(process.predict(history.vectors[:, knobs])[0]))
        best = int(np.argmax(log_expected_improvement(mean, sd, incumbent)))
        gains = gain_ratio(mean, sd, incumbent, is_log=history.scale == "log")
        return Proposal(
            configuration=candidates.cells[int(situation.unseen[best])],
            origin="guided",
            facts={"hyperparameters": list(process.hyperparameters), **expectation(gains)},
        )
