"""GPy's regression with expected improvement, as in the study that this tuner follows."""

from __future__ import annotations

import numpy as np

from tuner.sampling.baselines import gpy_model
from tuner.sampling.baselines.external_sampler import (
    at_random,
    expectation,
    is_too_early,
    observations,
)
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.surrogates.expected_improvement import gain_ratio, log_expected_improvement


class GpySampler(CandidateSampler):
    """Sampler with GPy's process and expected improvement."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose at random first, then by expected improvement."""
        if is_too_early(context):
            return at_random(context)
        history, candidates = context.history, context.candidates
        knobs = slice(candidates.design_width)
        vectors, targets = observations(context)
        noise_sd = gpy_model.NOISE_SD
        if history.scale == "raw":
            noise_sd *= max(float(np.std(targets)), 1e-9)
        process = gpy_model.fit(
            vectors, targets, noise_sd=noise_sd, start=history.hyperparameters
        ).expecting(history.pending_vectors[:, knobs])
        mean, sd = process.predict(candidates.vectors[context.untried, knobs])
        incumbent = float(np.min(process.predict(history.vectors[:, knobs])[0]))
        best = int(np.argmax(log_expected_improvement(mean, sd, incumbent)))
        gains = gain_ratio(mean, sd, incumbent, is_log=history.scale == "log")
        return Proposal(
            configuration=candidates.configurations[int(context.untried[best])],
            origin="guided",
            facts={"hyperparameters": list(process.hyperparameters), **expectation(gains)},
        )
