"""Epsilon-greedy: mostly the best so far, now and then something random.

After `initial` random trials, each trial is random with probability epsilon: a feasible cell that
was not run. Otherwise it exploits:

- `incumbent`: the best configuration so far once more, as a marked replicate. Best is the lowest
  mean over its repeats, so a lucky first measurement does not stay on top: being measured again
  corrects it.
- `model`: the cell with the best posterior mean of the Gaussian process, run before or not, among
  those more likely feasible than not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, get_args

import numpy as np

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.sampling import feasibility, surrogate
from tuner.sampling.candidates import LIMIT, Candidates
from tuner.sampling.cell_sampler import CellSampler, Proposal, Situation
from tuner.sampling.history import History
from tuner.sampling.surrogate import Seen
from tuner.values import Configuration

Exploit = Literal["incumbent", "model"]

EPSILON = 0.5
"""Repeats of the incumbent teach nothing new about the space, so half of the trials explore."""


class EpsilonGreedySampler(CellSampler):
    """Explore with probability epsilon, else exploit."""

    def __init__(
        self,
        *,
        seed: int,
        initial: int = 10,
        candidates: Candidates | None = None,
        limit: int = LIMIT,
        epsilon: float = EPSILON,
        exploit: Exploit = "incumbent",
    ) -> None:
        """Keep what is given; see `CellSampler`.

        Args:
            seed: 0 or more.
            initial: random trials before the first that exploits.
            candidates: the cells that may be proposed.
            limit: largest grid of distributions that is listed whole.
            epsilon: probability of a random trial, 0 to 1.
            exploit: what the others do.
        """
        super().__init__(seed=seed, initial=initial, candidates=candidates, limit=limit)
        if not 0 <= epsilon <= 1:
            raise WrongUse(
                f"epsilon is {epsilon!r}; expected a probability from 0 to 1, for example {EPSILON}"
            )
        if exploit not in get_args(Exploit):
            known = get_args(Exploit)
            raise WrongUse(
                f"exploit is {exploit!r}; expected {' or '.join(known)}{nearest(exploit, known)}"
            )
        self._epsilon = epsilon
        self._exploit = exploit

    def propose(self, situation: Situation) -> Proposal:
        """A random cell, or the best one."""
        is_initial = situation.history.earlier < situation.initial
        explores = situation.rng.random() < self._epsilon
        if is_initial or explores or not len(situation.history.targets):
            return situation.at_random()
        chosen = (
            incumbent(situation.history) if self._exploit == "incumbent" else best_mean(situation)
        )
        return Proposal(
            configuration=chosen,
            origin="replicate" if chosen in situation.history.seen else "guided",
        )


def incumbent(history: History) -> Configuration:
    """The observed configuration with the lowest mean target; the earliest of equals."""
    targets: dict[Configuration, list[float]] = defaultdict(list)
    for configuration, target in zip(history.configurations, history.targets, strict=True):
        targets[configuration].append(float(target))
    return min(targets, key=lambda configuration: float(np.mean(targets[configuration])))


def best_mean(situation: Situation) -> Configuration:
    """The candidate with the lowest posterior mean, among those that did not fail and likely will not."""
    history, among = situation.history, situation.not_lost
    vectors = situation.candidates.vectors[among]
    mean, _ = surrogate.fitted(Seen.of(history)).predict(vectors)
    classifier = feasibility.fit(history.vectors, history.lost_vectors)
    if classifier is not None:
        is_likely = classifier.log_probability(vectors) > np.log(0.5)
        mean = np.where(is_likely, mean, np.inf) if is_likely.any() else mean
    return situation.candidates.cells[int(among[int(np.argmin(mean))])]
