"""scikit-optimize's Gaussian process with expected improvement (an extra)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.baselines.external_sampler import ExternalProposal, ExternalSampler

_MIN_SD = 1e-9


class SkoptSampler(ExternalSampler):
    """Sampler with skopt's Matern-5/2 process and its expected improvement."""

    def ask_library(
        self, vectors: Array, targets: Array, candidates: Array, rng: np.random.Generator
    ) -> ExternalProposal:
        """Return a new optimizer's point and predictions."""
        import skopt  # noqa: PLC0415 - an extra, and slow to import

        optimizer: Any = skopt.Optimizer(
            [(0.0, 1.0)] * vectors.shape[1],
            base_estimator="GP",
            acq_func="EI",
            n_initial_points=1,
            random_state=int(rng.integers(2**31 - 1)),
        )
        with warnings.catch_warnings():
            # A fit that stops at a bound, and a repeated point, are both in order.
            warnings.filterwarnings("ignore", module=r"sklearn\.gaussian_process")
            warnings.filterwarnings("ignore", message="The objective has been evaluated")
            optimizer.tell(
                [list(map(float, row)) for row in vectors], [float(target) for target in targets]
            )
            point = np.asarray(optimizer.ask(), dtype=float)
            rows = optimizer.space.transform(candidates.tolist())
            mean, sd = optimizer.models[-1].predict(rows, return_std=True)
        return ExternalProposal(point, (mean, np.maximum(sd, _MIN_SD)))
