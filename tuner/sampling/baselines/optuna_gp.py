"""`optuna.samplers.GPSampler` with its defaults, over the unit cube (extra `benchmarks`)."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution

from tuner.sampling.arrays import Array
from tuner.sampling.baselines.external_sampler import ExternalProposal, ExternalSampler


class OptunaGpSampler(ExternalSampler):
    """Sampler that asks `optuna.samplers.GPSampler` over the unit cube."""

    def ask_library(
        self,
        vectors: Array,
        targets: Array,
        candidates: Array,  # noqa: ARG002 - it does not tell what it expects
        rng: np.random.Generator,
    ) -> ExternalProposal:
        """Return the proposal of a new `GPSampler` that is given all observations."""
        axes: dict[str, BaseDistribution] = {
            f"x{place:03}": FloatDistribution(0.0, 1.0) for place in range(vectors.shape[1])
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental features, and PyTorch's own
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
        return ExternalProposal(np.array([params[name] for name in axes]))
