"""SMAC's random forest with expected improvement: its model, its acquisition function, its random proposals.

The parts and their options are those of SMAC's facade for hyper-parameters: a forest of ten trees on
logarithms of the objective, log expected improvement over the best prediction so far, and one proposal of five
at random. What differs: SMAC looks for the largest expected improvement by local search, here every cell
that was not run is scored; its racing of repeated launches is left out, as MLOS does
(`deterministic=True`); and the improvement is computed by `gain_ratio`, the same formula over the value of the
incumbent, because SMAC's own raises where rounding makes an improvement of nothing negative. It is told
what `told` says.

A new forest is grown for each proposal and seeded by the trial's stream, so nothing is lost on resume.
This is the only file that knows SMAC, which the extra `benchmarks` brings.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.expected_improvement import gain_ratio
from tuner.sampling.told import is_too_early, told

Array = NDArray[np.float64]

RANDOM = 0.2
"""Share of random proposals: SMAC's own."""


class SmacSampler(CellSampler):
    """SMAC's forest and its expected improvement."""

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first and now and then, else the one with the largest expected improvement."""
        is_random = situation.rng.random() < RANDOM
        if is_too_early(situation) or is_random:
            return situation.at_random()
        vectors, targets = told(situation)
        knobs = situation.candidates.vectors[:, : situation.candidates.design_width]
        among = situation.unseen
        worth = expected_improvement(
            vectors,
            targets,
            knobs[among],
            situation.rng,
            is_log=situation.history.scale == "log",
        )
        chosen = situation.candidates.cells[int(among[int(np.argmax(worth))])]
        return Proposal(configuration=chosen, origin="guided")


def expected_improvement(
    vectors: Array, targets: Array, at: Array, rng: np.random.Generator, *, is_log: bool
) -> Array:
    """Expected improvement (m,) of points (m, d) as a share, by a forest that was told these (n, d) and (n,)."""
    import ConfigSpace  # noqa: PLC0415 - an extra, and slow to import
    from smac.model.random_forest.random_forest import RandomForest  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of scikit-learn and ConfigSpace
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
            # The same trees as SMAC's own: a million leaves at most, for which memory is taken, and threads.
            max_leaf_nodes=max(2, len(targets)),
            n_jobs=1,
            seed=int(rng.integers(2**31 - 1)),
        )
        forest.train(vectors, targets[:, None])
        incumbent = float(np.min(forest.predict_marginalized(vectors)[0]))
        mean, variance = (part.ravel() for part in forest.predict_marginalized(at))
    return gain_ratio(mean, np.sqrt(variance), incumbent, is_log=is_log)
