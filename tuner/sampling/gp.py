"""Bayesian optimisation with a Gaussian process over all cells; with a prediction of every cell, structured.

First `initial` trials: the default configuration (the hub enqueues it), the cells that a prediction or
earlier studies hold for the best, then a scrambled Sobol design mapped to the nearest cells that were
not run; as soon as a trial was lost, the design keeps to cells that are likely feasible. Then, for each
trial:

1. fit the process to the logarithms of the objectives (`surrogate`), and with a prediction a second one
   that has it for its mean; each counts by how well it foretells every launch from the others
   (`averaged`);
2. weigh every likely feasible cell, those that were run included: how much better is the best
   posterior mean expected to be after one more launch there (`knowledge_gradient`), times the
   probability that the launch works (`feasibility`, and `headroom` of memory);
3. propose the best. A cell that was run is proposed again, marked as a replicate, where a second
   launch is worth more than a new cell; one that failed is not.

Of four proposals one is the plain process's own, so that a wrong prediction cannot keep a search away from
anything. Where limits are set, the probability of keeping to them (`within_limits`) multiplies as well, and
what is improved on is the best of the configurations that probably do. Of two objectives each proposal
weighs both by a weight of its own (`front`). While nothing has been feasible,
P(feasible) alone decides. Frazier, Powell and Dayanik, "The
Knowledge-Gradient Policy for Correlated Normal Beliefs", 2009; Gardner et al., "Bayesian
Optimization with Inequality Constraints", ICML 2014, for the product. All state is derived from the
study; the attributes below only tell of the latest proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tuner.errors import WrongUse
from tuner.sampling import (
    averaged,
    feasibility,
    front,
    headroom,
    recommendation,
    within_limits,
)
from tuner.sampling.candidates import LIMIT, Candidates
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.expected_improvement import gain_ratio, log_expected_improvement
from tuner.sampling.knowledge import NOTHING, Earlier, Knowledge
from tuner.sampling.within_limits import Kept
from tuner.values import Configuration

Array = NDArray[np.float64]

LIKELY = 0.75
"""Cells below this probability of being feasible are left alone while enough others are above."""
LEAST_GAIN = 1e-5
"""Below it a knowledge gradient is rounding: the expected improvement decides."""
TURNS = 4
"""Every fourth guided proposal is the plain process's own: a wrong prediction keeps no search from looking around."""


class GpSampler(CellSampler):
    """Matern-5/2, knowledge gradient times the probability of feasibility, over all cells."""

    models_limits = True
    searches_fronts = True

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
        first: Sequence[Configuration] = (),
        earlier: Earlier | None = None,
    ) -> None:
        """Keep what is given; see `CellSampler`.

        Args:
            seed: 0 or more.
            initial: trials before the first guided one, the default included.
            candidates: the cells that may be proposed.
            limit: largest grid of distributions that is listed whole.
            first: cells to begin with after the default: previous winners, the best prediction.
            earlier: launches of earlier studies, in the candidates' axes.

        Raises:
            WrongUse: the earlier launches have other axes.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates, limit=limit)
        self._guess: Array | None = None
        self._first = tuple(first)
        if earlier is not None and (
            candidates is None or earlier.vectors.shape[1] != candidates.width
        ):
            raise WrongUse("earlier: expected launches in the axes of the candidates")
        self._earlier = earlier
        self._latency: Array | None = None
        self.largest_expected_improvement: float | None = None
        """Largest expected improvement of any cell that may be proposed, times its probability of
        being feasible, as a share of the incumbent: 0.01 is one per cent less latency. Of the latest
        proposal; None if that was of the design, or nothing was feasible yet."""

    def recommend(self, study: Study) -> Configuration | None:
        """The configuration with the best posterior mean; None while no trial was ok."""
        known = Knowledge(guess=self._guess, earlier=self._earlier, latency=self._latency)
        return recommendation.recommend(study, candidates=self._candidates, known=known)

    def propose(self, situation: Situation) -> Proposal:
        """The next point of the design, or the cell whose launch is worth most."""
        self.largest_expected_improvement = None
        history = situation.history
        classifier = feasibility.fit(history.vectors, history.lost_vectors)
        if situation.is_initial and len(situation.unseen):
            chosen = self._begun_with(situation) or designed(situation, classifier)
            return Proposal(configuration=chosen, origin="initial")
        among = situation.not_lost
        vectors = situation.candidates.vectors[among]
        log_feasible = (
            np.zeros(len(among)) if classifier is None else classifier.log_probability(vectors)
        )
        room = headroom.fit(history.vectors, history.headroom, history.killed_vectors)
        if room is not None:  # no product: where memory is the wall, both tell of the same launches
            log_feasible = np.minimum(log_feasible, room.log_probability(vectors))
        likely = np.flatnonzero(is_likely(log_feasible))
        among, log_feasible = among[likely], log_feasible[likely]
        kept = within_limits.fitted(history, situation.candidates, self._known(situation))
        log_kept = kept.log_probability(among)
        worth = np.flatnonzero(log_kept >= np.log(within_limits.WORTH_TRYING))
        if len(history.targets) and len(worth) and kept.is_any_worth:
            among, log_feasible = among[worth], (log_feasible + log_kept)[worth]
            best, facts = self._most_promising(situation, among, log_feasible, kept)
        else:
            log_feasible = log_feasible + log_kept
            fresh = np.isin(among, situation.unseen)
            best, facts = int(np.argmax(np.where(fresh, log_feasible, -np.inf))), {}
        is_new = bool(np.isin(among[best], situation.unseen))
        return Proposal(
            configuration=situation.candidates.cells[int(among[best])],
            origin="guided" if is_new else "replicate",
            facts={"feasible": float(np.exp(log_feasible[best])), **facts},
        )

    def _begun_with(self, situation: Situation) -> Configuration | None:
        """The next cell to begin with that was not run; None where there is none."""
        candidates, unseen = situation.candidates, set(situation.unseen.tolist())
        wanted = (candidates.index_of(one) for one in self._first)
        free = (one for one in wanted if one is not None and one in unseen)
        place = next(free, None)
        return None if place is None else candidates.cells[place]

    def _most_promising(
        self,
        situation: Situation,
        among: NDArray[np.intp],
        log_feasible: Array,
        kept: Kept,
    ) -> tuple[int, dict[str, Any]]:
        """Position in `among`, and what is expected there, in the study's unit."""
        history, candidates = situation.history, situation.candidates
        known, told = self._known(situation), {}
        if history.second is not None:
            weight = float(situation.rng.random())
            history, known, told = front.scalarised(history, weight), NOTHING, {"weight": weight}
        model = averaged.fitted(history, candidates, known, is_plain=self._is_plain(situation))
        incumbent = float(np.min(model.predict_observed()[0][kept.worth_trying]))
        expecting = model.expecting(history.pending_vectors)
        mean, sd = expecting.predict(among)
        tried, gains = expecting.knowledge_gradient(among)
        worth = gains * np.exp(log_feasible[tried])
        if worth.max() <= LEAST_GAIN:
            best = int(np.argmax(log_expected_improvement(mean, sd, incumbent) + log_feasible))
        else:
            best = int(tried[int(np.argmax(worth))])
        improvements = gain_ratio(mean, sd, incumbent, is_log=history.scale == "log")
        improvements = improvements * np.exp(log_feasible)
        is_new = np.isin(among, situation.unseen)
        self.largest_expected_improvement = float(np.max(improvements * is_new, initial=0.0))
        facts: dict[str, Any] = {
            **told,
            "expected_improvement": float(improvements[best]),
            "largest_expected_improvement": self.largest_expected_improvement,
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
            facts["guess_hyperparameters"] = list(model.structured.hyperparameters.as_tuple())
        if history.scale_reason:
            facts["scale_reason"] = history.scale_reason
        return best, facts

    def _is_plain(self, situation: Situation) -> bool:
        """Whether this proposal is the plain process's own."""
        return (situation.history.earlier - situation.initial) % TURNS == TURNS - 1

    def _known(self, situation: Situation) -> Knowledge:
        """What was known before the study, of the situation's candidates."""
        return Knowledge(
            guess=self._of(self._guess, situation.candidates),
            earlier=self._earlier,
            latency=self._of(self._latency, situation.candidates),
        )

    def _of(self, values: Array | None, candidates: Candidates) -> Array | None:
        """Values (m,) for candidates that may be fewer than those that were given."""
        if values is None or self._candidates is None:
            return None
        if candidates is self._candidates:
            return values
        places = [self._candidates.index_of(cell) for cell in candidates.cells]
        known = [place for place in places if place is not None]
        return values[known] if len(known) == len(places) else None


class StructuredSampler(GpSampler):
    """The same with a prediction of every cell; without one it is the plain one."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
        first: Sequence[Configuration] = (),
        earlier: Earlier | None = None,
        latency: Array | None = None,
        guess: Array | None = None,
    ) -> None:
        """Keep what is given; see `GpSampler`.

        Args:
            seed: 0 or more.
            initial: trials before the first guided one, the default included.
            candidates: the cells that may be proposed.
            limit: largest grid of distributions that is listed whole.
            first: cells to begin with after the default: previous winners, the best prediction.
            earlier: launches of earlier studies, in the candidates' axes.
            latency: (m,) of the candidates, the predicted mean round trip, for limits that go with it.
            guess: (m,) of the candidates, the predicted objective, minimised and positive.

        Raises:
            WrongUse: the guess is not one of these candidates.
        """
        super().__init__(
            seed=seed,
            initial=initial,
            candidates=candidates,
            limit=limit,
            first=first,
            earlier=earlier,
        )
        self._latency = None if latency is None else np.log(latency)
        if guess is None:
            return
        if candidates is None or len(guess) != len(candidates.cells):
            raise WrongUse("guess: expected one value for each candidate")
        if not (np.isfinite(guess).all() and (guess > 0).all()):
            raise WrongUse("guess: expected positive values")
        self._guess = np.log(guess)


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
