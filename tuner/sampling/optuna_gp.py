"""Optuna's own Gaussian process with log expected improvement, in this room's frame.

What is proposed is what `optuna.samplers.GPSampler` says, with its defaults, of a study in memory that
holds the points and targets of `told`: a float in [0, 1] for each entry of a cell's vector, because a
study's own distributions do not show the order of a knob. It needs PyTorch, which the extra `benchmarks`
brings.
"""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution

from tuner.sampling.told import Asked, PointSampler

Array = NDArray[np.float64]


class OptunaGpSampler(PointSampler):
    """`optuna.samplers.GPSampler` over the unit cube."""

    def asked(
        self,
        vectors: Array,
        targets: Array,
        cells: Array,  # noqa: ARG002 - it does not tell what it expects
        rng: np.random.Generator,
    ) -> Asked:
        """The point that a new sampler asks for after it was told these."""
        axes: dict[str, BaseDistribution] = {
            f"x{place:03}": FloatDistribution(0.0, 1.0) for place in range(vectors.shape[1])
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental, and of PyTorch's own
            sampler = optuna.samplers.GPSampler(
                seed=int(rng.integers(2**31 - 1)),
                n_startup_trials=1,
                warn_independent_sampling=False,
            )
            study = optuna.create_study(
                storage=optuna.storages.InMemoryStorage(), sampler=sampler, study_name="told"
            )
            study.add_trials(
                optuna.trial.create_trial(
                    params=dict(zip(axes, row, strict=True)), distributions=axes, value=target
                )
                for row, target in zip(vectors.tolist(), targets.tolist(), strict=True)
            )
            params = study.ask(axes).params
        return Asked(np.array([params[name] for name in axes]))
