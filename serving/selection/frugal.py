"""Whether all models are asked, or one cheap model will do.

In: how often each model was wrong, how often all together, and what each costs, in the unit of
loss: a cost of 0.01 is worth one wrong answer in a hundred. One model is asked where its mean loss
plus its cost is no more than that of all together plus all costs. Now and then all are asked
nevertheless, so that what is known of them stays true. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from serving.selection.policy import Choice
from serving.selection.tallies import Tallies

_ENOUGH = 30.0
"""Observations of all together before one model may stand for them: with fewer, a difference of
ten percentage points is not seen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """How often the combination of all models was wrong."""

    count: float = 0.0
    losses: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in (self.count, self.losses)):
            raise ValueError("a count or a sum of losses is negative or not finite")

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Together:
        """Inverse of `as_json`."""
        return cls(count=float(data["count"]), losses=float(data["losses"]))

    def observed(self, loss: float | None, keep: float) -> Together:
        """One more feedback; None: not all models were asked."""
        return Together(
            count=keep * self.count + (loss is not None), losses=keep * self.losses + (loss or 0.0)
        )


UNSEEN = Together()
"""No feedback yet."""


def choice(
    tallies: Tallies,
    together: Together,
    *,
    costs: Mapping[str, float],
    explore: float,
    draw: float,
) -> Choice:
    """All models, or the one that will do; without costs always all.

    Args:
        tallies: losses of each model.
        together: losses of all combined.
        costs: of each model, 0 where it has none.
        explore: share of queries that go to all even where one will do.
        draw: in [0, 1).
    """
    models = tallies.models
    everyone = Choice(models=models, probabilities=dict.fromkeys(models, 1.0))
    if not costs or together.count < _ENOUGH or len(models) < 2:
        return everyone
    prices = {
        model: mean + costs.get(model, 0.0)
        for model, mean in zip(models, tallies.means(0.5, 2.0), strict=True)
    }
    cheapest = min(models, key=prices.__getitem__)
    of_all = together.losses / together.count + math.fsum(costs.get(model, 0.0) for model in models)
    if prices[cheapest] > of_all:
        return everyone
    probabilities = {model: 1.0 if model == cheapest else explore for model in models}
    return Choice(models=models if draw < explore else (cheapest,), probabilities=probabilities)
