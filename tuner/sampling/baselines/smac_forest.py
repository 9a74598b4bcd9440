"""SMAC's random forest with expected improvement and random proposals (extra `benchmarks`).

It follows SMAC's hyper-parameter facade, but scores every untried candidate, does not race, and
uses `gain_ratio`, as SMAC's own improvement raises on rounding errors.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.baselines.external_sampler import is_too_early, observations
from tuner.sampling.candidate_sampler import CandidateSampler, Proposal, SamplerContext
from tuner.sampling.surrogates.expected_improvement import gain_ratio

RANDOM = 0.2


class SmacSampler(CandidateSampler):
    """Sampler with SMAC's forest and its expected improvement."""

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose at random first and sometimes later, otherwise by expected improvement."""
        is_random = context.rng.random() < RANDOM
        if is_too_early(context) or is_random:
            return context.at_random()
        vectors, targets = observations(context)
        knobs = context.candidates.vectors[:, : context.candidates.design_width]
        among = context.untried
        worth = expected_improvement(
            vectors,
            targets,
            knobs[among],
            context.rng,
            is_log=context.history.scale == "log",
        )
        chosen = context.candidates.configurations[int(among[int(np.argmax(worth))])]
        return Proposal(configuration=chosen, origin="guided")


def expected_improvement(
    vectors: Array, targets: Array, at: Array, rng: np.random.Generator, *, is_log: bool
) -> Array:
    """Return the relative expected improvement (m,) at (m, d), given data (n, d) and (n,)."""
    import ConfigSpace  # noqa: PLC0415 - an extra, and slow to import
    from smac.model.random_forest.random_forest import RandomForest  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its use of scikit-learn and ConfigSpace
        cube = ConfigSpace.ConfigurationSpace(
            {f"x{place:03}": (0.0, 1.0) for place in range(vectors.shape[1])}
        )
        forest: Any = RandomForest(
            configspace=cube,
            log_y=is_log,
            n_trees=10,
            ratio_features=1.0,
            min_samples_split=2,
            min_samples_leaf=1,
            max_depth=2**20,
            bootstrapping=True,
            # SMAC allows a million leaves and reserves memory for them; the trees are the same.
            max_leaf_nodes=max(2, len(targets)),
            n_jobs=1,
            seed=int(rng.integers(2**31 - 1)),
        )
        forest.train(vectors, targets[:, None])
        incumbent = float(np.min(forest.predict_marginalized(vectors)[0]))
        mean, variance = (part.ravel() for part in forest.predict_marginalized(at))
    return gain_ratio(mean, np.sqrt(variance), incumbent, is_log=is_log)
