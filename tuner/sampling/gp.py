"""Bayesian optimisation with a Gaussian process: the default sampler.

First `initial` trials: the default configuration (the hub enqueues it), then a scrambled Sobol
design mapped to the nearest cells that were not run; as soon as a trial was lost, the design
keeps to cells that are likely feasible. Then, for each trial:

1. fit the process to the logarithms of the objectives (`gp_model`), from the hyper-parameters
   that the last proposal kept;
2. incumbent: the best posterior mean at an observed configuration, not the luckiest measurement;
3. score every likely feasible cell that was not run: log expected improvement + log P(feasible)
   (`expected_improvement`, `feasibility`);
4. propose the best. No cell twice, until all were run; then the best again, marked as a replicate.

While nothing has been feasible, P(feasible) alone decides. Gardner et al., "Bayesian Optimization
with Inequality Constraints", ICML 2014, for the product; Picheny et al., "A benchmark of
kriging-based infill criteria for noisy optimization", 2013, for the incumbent. All state is
derived from the study; the attributes below only tell of the latest proposal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tuner.sampling import feasibility, gp_model, recommendation
from tuner.sampling.candidates import LIMIT, Candidates
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.expected_improvement import gain_ratio, log_expected_improvement
from tuner.sampling.recommendation import surrogate_of
from tuner.values import Configuration

Array = NDArray[np.float64]

LIKELY = 0.75
"""Cells below this probability of being feasible are left alone while enough others are above."""


class GpSampler(CellSampler):
    """GPy, Matern-5/2, expected improvement times the probability of feasibility, over all cells."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
    ) -> None:
        super().__init__(seed=seed, initial=initial, candidates=candidates, limit=limit)
        self.largest_expected_improvement: float | None = None
        """Largest expected improvement of any cell that may be proposed, times its probability of
        being feasible, as a share of the incumbent: 0.01 is one per cent less latency. Of the latest
        proposal; None if that was of the design, or nothing was feasible yet."""

    @staticmethod
    def warm_up() -> None:
        """Import what the first fit needs (1.5 s, once), for example in a thread while an engine starts."""
        gp_model.warm_up()

    def recommend(self, study: Study) -> Configuration | None:
        """The observed configuration with the best posterior mean; None while no trial was ok."""
        return recommendation.recommend(study, candidates=self._candidates)

    def propose(self, situation: Situation) -> Proposal:
        """The next point of the design, or the cell with the largest expected improvement."""
        self.largest_expected_improvement = None
        classifier = feasibility.fit(situation.history.vectors, situation.history.lost_vectors)
        if situation.is_initial and len(situation.unseen):
            return Proposal(configuration=designed(situation, classifier), origin="initial")
        among = situation.unseen if len(situation.unseen) else situation.not_lost
        vectors = situation.candidates.vectors[among]
        log_feasible = (
            np.zeros(len(among)) if classifier is None else classifier.log_probability(vectors)
        )
        likely = np.flatnonzero(is_likely(log_feasible))
        among, vectors, log_feasible = among[likely], vectors[likely], log_feasible[likely]
        if len(situation.history.targets):
            best, facts = self._most_promising(situation, vectors, log_feasible)
        else:
            best, facts = int(np.argmax(log_feasible)), {}
        return Proposal(
            configuration=situation.candidates.cells[int(among[best])],
            origin="guided" if len(situation.unseen) else "replicate",
            facts={"feasible": float(np.exp(log_feasible[best])), **facts},
        )

    def _most_promising(
        self, situation: Situation, vectors: Array, log_feasible: Array
    ) -> tuple[int, dict[str, Any]]:
        """Position among `vectors` (m, d), and what is expected there, in the study's unit."""
        history = situation.history
        surrogate = surrogate_of(history)
        incumbent = float(np.min(surrogate.predict(history.vectors)[0]))
        mean, sd = surrogate.expecting(history.pending_vectors).predict(vectors)
        best = int(np.argmax(log_expected_improvement(mean, sd, incumbent) + log_feasible))
        gains = gain_ratio(mean, sd, incumbent, is_log=history.scale == "log")
        gains = gains * np.exp(log_feasible)
        self.largest_expected_improvement = float(np.max(gains)) if len(situation.unseen) else 0.0
        facts: dict[str, Any] = {
            "expected_improvement": float(gains[best]),
            "largest_expected_improvement": self.largest_expected_improvement,
            "mean": history.value_of(float(mean[best])),
            "sd": float(sd[best]),
            "incumbent": history.value_of(incumbent),
            "noise_sd": surrogate.noise_sd,
            "scale": history.scale,
            "hyperparameters": list(surrogate.hyperparameters),
        }
        if history.scale_reason:
            facts["scale_reason"] = history.scale_reason
        return best, facts


def is_likely(log_feasible: Array) -> NDArray[np.bool_]:
    """Which cells (m,) may be proposed: the likely feasible ones, but never fewer than a quarter.

    The product of improvement and probability alone is not enough: where nothing else is left to
    gain, it spends the rest of a study behind the wall, whose cells still promise as much as ever.
    """
    return log_feasible >= min(float(np.log(LIKELY)), float(np.quantile(log_feasible, 0.75)))


def designed(situation: Situation, classifier: feasibility.Feasibility | None) -> Configuration:
    """The unseen cell nearest to the next point of the design, among the likely feasible ones."""
    among, point = situation.unseen, situation.design_point()
    if classifier is None:
        return situation.candidates.realise(point, among)
    vectors = situation.candidates.vectors[among]
    likely = among[is_likely(classifier.log_probability(vectors))]
    return situation.candidates.cells[situation.candidates.nearest(point, likely)]
