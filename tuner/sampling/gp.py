"""Bayesian optimisation with Gaussian processes over all candidates, optionally with predictions.

The `initial` trials are the default, candidates that predictions or earlier studies favour, and a
scrambled Sobol design among likely feasible candidates. Later trials fit the processes
(`model_averaging`) and propose the candidate, perhaps a replicate, with the best product of
`knowledge_gradient` and the probabilities of success (`feasibility`, `headroom`) and of keeping the
metric constraints. Until something is feasible, the probabilities alone decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tuner.errors import UsageError
from tuner.sampling import pareto_front, recommendation
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.candidate_sampler import (
    CandidateSampler,
    Proposal,
    SamplerContext,
    check_prediction,
)
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.surrogates import constraint_model, feasibility, headroom, model_averaging
from tuner.sampling.surrogates.constraint_model import ConstraintModel
from tuner.sampling.surrogates.expected_improvement import gain_ratio, log_expected_improvement
from tuner.sampling.surrogates.knowledge import NO_PRIOR_KNOWLEDGE, PriorKnowledge, WarmStart
from tuner.values.configuration import Configuration

LIKELY = 0.75
MIN_GAIN = 1e-5
"""Knowledge gradient below which expected improvement decides instead."""
TURNS = 4
"""Every fourth guided proposal uses the plain process, in case predictions are misleading."""


class GpSampler(CandidateSampler):
    """Sampler that maximises the knowledge gradient times the probability of feasibility."""

    options: ClassVar[tuple[str, ...]] = ("first", "earlier")
    models_limits = True
    searches_fronts = True

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: CandidateSet | None = None,
        first: Sequence[Configuration] = (),
        earlier: WarmStart | None = None,
        latency: Array | None = None,
        guess: Array | None = None,
    ) -> None:
        """Store the arguments; see `CandidateSampler`.

        Args:
            first: candidates to try right after the default.
            earlier: evaluations from earlier studies, on the candidates' axes.
            latency: (m,) predicted mean latencies of the candidates.
            guess: (m,) predicted objectives of the candidates, minimised and positive.

        Raises:
            UsageError: `earlier` or `guess` does not fit the candidates, or `guess` is not above 0.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates)
        self._first = tuple(first)
        if earlier is not None and (
            candidates is None or earlier.vectors.shape[1] != candidates.width
        ):
            raise UsageError("earlier: expected evaluations in the axes of the candidates")
        if guess is not None:
            check_prediction(guess, candidates)
            if not (np.isfinite(guess).all() and (guess > 0).all()):
                raise UsageError("guess: expected positive values")
        self._known = PriorKnowledge(
            prior_mean=None if guess is None else np.log(guess),
            warm_start=earlier,
            latency=None if latency is None else np.log(latency),
        )

    def recommend(self, study: Study) -> Configuration | None:
        """Return the configuration with the best posterior mean, or None without successes."""
        return recommendation.recommend(study, candidates=self._candidates, known=self._known)

    def propose(self, context: SamplerContext) -> Proposal:
        """Propose the next design point, or the most valuable candidate."""
        history = context.history
        classifier = feasibility.fit(history.vectors, history.lost_vectors)
        if context.is_initial and len(context.untried):
            chosen = self._begun_with(context) or next_design_candidate(context, classifier)
            return Proposal(configuration=chosen, origin="initial")
        among = context.not_lost
        vectors = context.candidates.vectors[among]
        log_feasible = (
            np.zeros(len(among)) if classifier is None else classifier.log_probability(vectors)
        )
        room = headroom.fit(history.vectors, history.headroom, history.killed_vectors)
        if room is not None:  # no product: where memory is the limit, both describe the same trials
            log_feasible = np.minimum(log_feasible, room.log_probability(vectors))
        likely = np.flatnonzero(is_likely(log_feasible))
        among, log_feasible = among[likely], log_feasible[likely]
        kept = constraint_model.fit(history, context.candidates, self._prior_knowledge(context))
        log_kept = kept.log_probability(among)
        worth = np.flatnonzero(log_kept >= np.log(constraint_model.WORTH_TRYING))
        if len(history.targets) and len(worth) and kept.worth_trying.any():
            among, log_feasible = among[worth], (log_feasible + log_kept)[worth]
            best, facts = self._most_promising(context, among, log_feasible, kept)
        else:
            log_feasible = log_feasible + log_kept
            fresh = np.isin(among, context.untried)
            allowed = fresh | ~fresh.any()
            best, facts = int(np.argmax(np.where(allowed, log_feasible, -np.inf))), {}
        is_new = bool(np.isin(among[best], context.untried))
        return Proposal(
            configuration=context.candidates.configurations[int(among[best])],
            origin="guided" if is_new else "replicate",
            facts={"feasible": float(np.exp(log_feasible[best])), **facts},
        )

    def _begun_with(self, context: SamplerContext) -> Configuration | None:
        candidates, unseen = context.candidates, set(context.untried.tolist())
        wanted = (candidates.index_of(one) for one in self._first)
        free = (one for one in wanted if one is not None and one in unseen)
        place = next(free, None)
        return None if place is None else candidates.configurations[place]

    def _most_promising(
        self,
        context: SamplerContext,
        among: Positions,
        log_feasible: Array,
        kept: ConstraintModel,
    ) -> tuple[int, dict[str, Any]]:
        history, candidates = context.history, context.candidates
        known, told = self._prior_knowledge(context), {}
        if history.second is not None:
            weight = float(context.rng.random())
            history, known, told = (
                pareto_front.scalarise(history, weight),
                NO_PRIOR_KNOWLEDGE,
                {"weight": weight},
            )
        model = model_averaging.fit(history, candidates, known, is_plain=self._is_plain(context))
        incumbent = float(np.min(model.predict_observed()[0][kept.worth_trying]))
        expecting = model.expecting(history.pending_vectors)
        mean, sd = expecting.predict(among)
        tried, gains = expecting.knowledge_gradient(among)
        worth = gains * np.exp(log_feasible[tried])
        if worth.max() <= MIN_GAIN:
            best = int(np.argmax(log_expected_improvement(mean, sd, incumbent) + log_feasible))
        else:
            best = int(tried[int(np.argmax(worth))])
        improvements = gain_ratio(mean, sd, incumbent, is_log=history.scale == "log")
        improvements = improvements * np.exp(log_feasible)
        is_new = np.isin(among, context.untried)
        facts: dict[str, Any] = {
            **told,
            "expected_improvement": float(improvements[best]),
            "largest_expected_improvement": float(np.max(improvements * is_new, initial=0.0)),
            "knowledge_gradient": float(worth.max()),
            "mean": history.value_of(float(mean[best])),
            "sd": float(sd[best]),
            "incumbent": history.value_of(incumbent),
            "noise_sd": model.noise_sd,
            "scale": history.scale,
            "hyperparameters": list(model.plain.hyperparameters.as_tuple()),
        }
        if model.structured is not None:
            facts["guess_weight"] = model.weight
        if history.scale_reason:
            facts["scale_reason"] = history.scale_reason
        return best, facts

    def _is_plain(self, context: SamplerContext) -> bool:
        return (context.history.trial_count - context.initial) % TURNS == TURNS - 1

    def _prior_knowledge(self, context: SamplerContext) -> PriorKnowledge:
        whole, known = self._candidates, self._known
        if whole is None or context.candidates is whole:
            return known
        configurations = context.candidates.configurations
        return dataclasses.replace(
            known,
            prior_mean=whole.values_at(configurations, known.prior_mean),
            latency=whole.values_at(configurations, known.latency),
        )


class StructuredSampler(GpSampler):
    """`GpSampler` with a prediction for every candidate."""

    options = ("first", "earlier", "guess", "latency")


def is_likely(log_feasible: Array) -> NDArray[np.bool_]:
    """Return which candidates (m,) are likely feasible, always at least a quarter of them.

    Without this filter, a search with little left to gain would keep trying infeasible ones.
    """
    return log_feasible >= min(float(np.log(LIKELY)), float(np.quantile(log_feasible, 0.75)))


def next_design_candidate(
    context: SamplerContext, classifier: feasibility.Feasibility | None
) -> Configuration:
    """Return the likely feasible, untried candidate nearest to the next design point."""
    among, point = context.untried, context.design_point()
    if classifier is None:
        return context.candidates.realise(point, among)
    vectors = context.candidates.vectors[among]
    likely = among[is_likely(classifier.log_probability(vectors))]
    return context.candidates.configurations[context.candidates.nearest(point, likely)]
