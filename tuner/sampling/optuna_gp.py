"""Optuna's own Gaussian process with log expected improvement, in this room's frame.

What is proposed is what `optuna.samplers.GPSampler` says, with its defaults, of a study in memory that
holds the points and targets of `told`: a float in [0, 1] for each entry of a cell's vector, because a
study's own distributions do not show the order of a knob. It becomes the nearest cell that was not run.

A new one is made for each proposal and seeded by the trial's stream, so nothing is lost on resume. It
needs PyTorch, which the extra `benchmarks` brings.
"""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution

from tuner.sampling.candidates import LIMIT, Candidates
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.told import is_too_early, told

Array = NDArray[np.float64]


class OptunaGpSampler(CellSampler):
    """`optuna.samplers.GPSampler` over the unit cube."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
    ) -> None:
        super().__init__(seed=seed, initial=initial, candidates=candidates, limit=limit)

    def propose(self, situation: Situation) -> Proposal:
        """A random cell at first, then the cell nearest to the point that it asks for."""
        if is_too_early(situation):
            return situation.at_random()
        point = asked(*told(situation), situation.rng)
        return Proposal(
            configuration=situation.candidates.realise(point, situation.unseen), origin="guided"
        )


def asked(vectors: Array, targets: Array, rng: np.random.Generator) -> Array:
    """The point (d,) that a new sampler asks for after it was told these (n, d) and (n,)."""
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
    return np.array([params[name] for name in axes])
