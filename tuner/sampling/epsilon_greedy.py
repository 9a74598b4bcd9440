"""Epsilon-greedy search: explore with probability epsilon, otherwise exploit.

Exploring tries a random untried candidate. Exploiting evaluates

- `incumbent`: the configuration with the lowest mean over its repeats, again;
- `model`: the best posterior mean among candidates more likely feasible than not.
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
"""Half of the trials explore, as repeats teach nothing about the space."""


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
        """Store the arguments; see `CellSampler`. `epsilon` is a probability, 0 to 1."""
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
        """Propose a random candidate, or the best."""
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
    """Return the configuration with the lowest mean target, earliest of equals."""
    targets: dict[Configuration, list[float]] = defaultdict(list)
    for configuration, target in zip(history.configurations, history.targets, strict=True):
        targets[configuration].append(float(target))
    return min(targets, key=lambda configuration: float(np.mean(targets[configuration])))


def best_mean(situation: Situation) -> Configuration:
    """Return the likely feasible candidate with the lowest posterior mean."""
    history, among = situation.history, situation.not_lost
    vectors = situation.candidates.vectors[among]
    mean, _ = surrogate.fitted(Seen.of(history)).predict(vectors)
    classifier = feasibility.fit(history.vectors, history.lost_vectors)
    if classifier is not None:
        is_likely = classifier.log_probability(vectors) > np.log(0.5)
        mean = np.where(is_likely, mean, np.inf) if is_likely.any() else mean
    return situation.candidates.cells[int(among[int(np.argmin(mean))])]
